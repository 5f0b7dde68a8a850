// The board: filters, cards that move by hand or by key, and cards that change by themselves.
import { openSheet, piece, post, say, typing } from './app.js';

const board = document.getElementById('board');
const filters = document.getElementById('filters');
const menu = document.getElementById('menu');
const mayMove = board.dataset.mayMove === 'yes';
const NAMES = ['BACKLOG', 'IN_PROGRESS', 'REVIEW', 'DONE'];
const waiting = new Set();
let flushing = 0;
let dragged = null;

function query(extra = {}) {
  const values = new URLSearchParams();
  for (const [name, value] of new FormData(filters)) if (value) values.set(name, value);
  for (const [name, value] of Object.entries(extra)) values.set(name, value);
  return values.toString();
}

const column = (name) => board.querySelector(`.column[data-column="${CSS.escape(name)}"]`);
const card = (id) => document.getElementById(`c-${id}`);

function count(name, total) {
  const place = column(name);
  place.querySelector('[data-total]').textContent = total;
  place.querySelector('[data-more]').hidden = place.querySelectorAll('.card').length >= total;
}

let clashing = new Set();

/** Mark the cards whose work does not merge cleanly. */
function markClashes() {
  for (const one of board.querySelectorAll('.card')) {
    const shown = one.querySelector('.pill.conflict');
    if (!clashing.has(one.dataset.id)) { shown?.remove(); continue; }
    if (shown) continue;
    const mark = document.createElement('span');
    mark.className = 'pill conflict';
    mark.textContent = 'conflict';
    mark.title = 'it does not merge cleanly';
    one.querySelector('.prio').after(mark);
  }
}

let looking = 0;
function lookForClashes(wait = 0) {
  clearTimeout(looking);
  looking = setTimeout(async () => {
    if (!column('REVIEW').querySelector('.card') && !clashing.size) return;
    const response = await fetch('/board/conflicts', { headers: { Accept: 'application/json' } }).catch(() => null);
    if (!response?.ok) return;
    clashing = new Set((await response.json()).ids);
    markClashes();
  }, wait);
}

let renewals = 0;
async function renew() {
  const mine = ++renewals;
  const focused = document.activeElement?.closest?.('.card')?.dataset.id;
  const fresh = await piece(`/?${query()}`);
  if (mine !== renewals) return; // a later one is on its way
  board.replaceChildren(fresh);
  markClashes();
  if (focused) card(focused)?.querySelector('.card-title').focus();
}

/** Put a card where it belongs: its column, newest first. A card past the last one shown stays out. */
function place(fresh) {
  const { id, column: name, at } = fresh.dataset;
  const old = card(id);
  const focus = old?.contains(document.activeElement);
  const list = column(name).querySelector('[data-cards]');
  const next = [...list.children].find((one) => one !== old && Number(one.dataset.at) < Number(at));
  const full = !next && !column(name).querySelector('[data-more]').hidden;
  old?.remove();
  if (full) return;
  list.insertBefore(fresh, next ?? null);
  if (focus) fresh.querySelector('.card-title').focus();
}

async function flush() {
  flushing = 0;
  const ids = [...waiting];
  waiting.clear();
  try {
    if (ids.length > 60) { await renew(); return; }
    const fresh = await piece(`/board/cards?${query({ ids: ids.join(',') })}`);
    const cards = [...fresh.querySelectorAll('.card')];
    const found = new Set(cards.map((one) => one.dataset.id));
    for (const id of ids) if (!found.has(id)) card(id)?.remove();
    cards.forEach(place);
    markClashes();
    for (const one of fresh.querySelectorAll('.count')) count(one.dataset.column, Number(one.value));
  } catch (error) {
    say(error.message);
  }
}

function changed(id) {
  waiting.add(id);
  flushing ||= setTimeout(flush, 120);
}

document.addEventListener('quarterdeck:change', ({ detail }) => {
  const noun = detail.kind.split('.')[0];
  if (detail.task && detail.kind !== 'job.progress' && ['task', 'job', 'review', 'merge'].includes(noun)) changed(detail.task);
});
// What may change whether two pieces of work fit together.
document.addEventListener('quarterdeck:change', ({ detail }) => {
  if (['review', 'worktree', 'merge'].includes(detail.kind.split('.')[0]) || /^task\.(updated|merged|deleted)$/.test(detail.kind)) lookForClashes(800);
});
document.addEventListener('quarterdeck:reset', () => renew().catch((error) => say(error.message)));
document.addEventListener('quarterdeck:sent', ({ detail }) => { if (detail.id) changed(detail.id); });

async function move(id, to) {
  const one = card(id);
  if (!one || one.dataset.column === to) return;
  one.setAttribute('aria-busy', 'true');
  try {
    await post(`/tasks/${encodeURIComponent(id)}/move`, { column: to });
    say(`Moved to ${column(to).querySelector('h2').firstChild.textContent.trim()}`);
  } catch (error) {
    say(error.message);
  }
  changed(id);
}

if (mayMove) {
  board.addEventListener('dragstart', (event) => {
    const one = event.target.closest?.('.card');
    if (!one) return;
    dragged = one.dataset.id;
    event.dataTransfer.effectAllowed = 'move';
    event.dataTransfer.setData('text/plain', dragged);
    one.classList.add('dragged');
  });
  const over = (event) => {
    const place = dragged && event.target.closest?.('.column');
    for (const one of board.querySelectorAll('.column.over')) if (one !== place) one.classList.remove('over');
    if (!place) return;
    event.preventDefault();
    place.classList.add('over');
  };
  board.addEventListener('dragenter', over);
  board.addEventListener('dragover', over);
  board.addEventListener('drop', (event) => {
    const place = event.target.closest('.column');
    if (!dragged || !place) return;
    event.preventDefault();
    move(dragged, place.dataset.column);
  });
  board.addEventListener('dragend', () => {
    dragged = null;
    for (const one of board.querySelectorAll('.over, .dragged')) one.classList.remove('over', 'dragged');
  });
  menu.addEventListener('click', (event) => {
    const to = event.target.closest('[data-to]')?.dataset.to;
    if (to) { menu.close(); move(menu.dataset.id, to); }
    if (event.target.closest('[data-edit]')) {
      event.preventDefault();
      menu.close();
      openSheet(`/tasks/${encodeURIComponent(menu.dataset.id)}/edit`);
    }
  });
}

function openMenu(id) {
  menu.dataset.id = id;
  menu.querySelector('#menu-title').textContent = card(id).querySelector('.card-title').textContent;
  menu.querySelector('[data-open]').href = `/tasks/${encodeURIComponent(id)}`;
  for (const one of menu.querySelectorAll('[data-to]')) one.disabled = one.dataset.to === card(id).dataset.column;
  menu.showModal();
}

board.addEventListener('click', async (event) => {
  const dots = event.target.closest('[data-menu]');
  if (dots) openMenu(dots.dataset.menu);
  const more = event.target.closest('[data-more]');
  if (!more) return;
  const name = more.closest('.column').dataset.column;
  const list = column(name).querySelector('[data-cards]');
  const fresh = await piece(`/board/more/${name}?${query({ after: list.children.length })}`);
  const cards = [...fresh.querySelectorAll('.card')].filter((one) => !card(one.dataset.id));
  list.append(...cards);
  more.hidden = list.children.length >= Number(column(name).querySelector('[data-total]').textContent) || !cards.length;
});

function walk(from, key) {
  if (key === 'ArrowDown') return from.nextElementSibling;
  if (key === 'ArrowUp') return from.previousElementSibling;
  const step = key === 'ArrowRight' ? 1 : -1;
  const index = [...from.parentElement.children].indexOf(from);
  for (let to = NAMES.indexOf(from.dataset.column) + step; NAMES[to]; to += step) {
    const cards = column(NAMES[to]).querySelectorAll('.card');
    if (cards.length) return cards[Math.min(index, cards.length - 1)];
  }
  return null;
}

document.addEventListener('keydown', (event) => {
  if (typing(event)) return;
  const one = event.target.closest?.('.card');
  if (event.key.startsWith('Arrow')) {
    const to = one ? walk(one, event.key) : event.key === 'ArrowDown' && event.target === document.body && board.querySelector('.card');
    if (to) { event.preventDefault(); to.querySelector('.card-title').focus(); }
  } else if (one && mayMove && (event.key === '[' || event.key === ']')) {
    const to = NAMES[NAMES.indexOf(one.dataset.column) + (event.key === ']' ? 1 : -1)];
    if (to) move(one.dataset.id, to);
  } else if (one && mayMove && event.key === 'e') {
    event.preventDefault();
    openSheet(`/tasks/${encodeURIComponent(one.dataset.id)}/edit`);
  } else if (one && mayMove && event.key === 'm') {
    openMenu(one.dataset.id);
  }
});

let asking = 0;
function refilter(wait) {
  clearTimeout(asking);
  asking = setTimeout(() => {
    const words = query();
    history.replaceState(null, '', words ? `/?${words}` : '/');
    renew().catch((error) => say(error.message));
  }, wait);
}
filters.addEventListener('input', (event) => refilter(event.target.type === 'search' ? 200 : 0));
filters.addEventListener('submit', (event) => { event.preventDefault(); refilter(0); });
lookForClashes();
