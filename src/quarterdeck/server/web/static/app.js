// What every page does: dialogs, forms that report without a reload, times that stay true.
import './live.js';

export const csrf = document.querySelector('meta[name="csrf"]')?.content ?? '';
const said = document.getElementById('said');
let silence = 0;

/** Say something to whoever looks or listens. */
export function say(text) {
  said.textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { said.textContent = ''; }, 6000);
}

/** Send a form's values; the JSON answer, or an error with the words of the refusal. */
export async function post(path, values) {
  const body = values instanceof URLSearchParams ? values : new URLSearchParams(values);
  const response = await fetch(path, {
    method: 'POST', body, headers: { Accept: 'application/json', 'X-CSRF': csrf },
  });
  const answer = await response.json().catch(() => ({}));
  if (response.status === 401) location.assign('/signin');
  if (!response.ok) throw new Error([answer.detail ?? 'the core did not answer', answer.hint].filter(Boolean).join('. '));
  return answer;
}

/** A piece of a page, as nodes. */
export async function piece(path) {
  const response = await fetch(path, { headers: { Accept: 'text/html', 'X-Fragment': '1' } });
  if (response.redirected && new URL(response.url).pathname === '/signin') location.assign('/signin');
  if (!response.ok) throw new Error('the core did not answer');
  const holder = document.createElement('template');
  holder.innerHTML = await response.text();
  return holder.content;
}

const sheet = document.getElementById('sheet');

/** Show a form of ours in the dialog. */
export async function openSheet(path) {
  try {
    document.getElementById('sheet-body').replaceChildren(await piece(path));
    sheet.showModal();
    sheet.querySelector('[autofocus]')?.focus();
  } catch (error) {
    say(error.message);
  }
}

async function send(form, button) {
  const values = new URLSearchParams(new FormData(form, button));
  const problem = form.querySelector('.error');
  button?.setAttribute('disabled', '');
  try {
    const answer = await post(form.action, values);
    const dialog = form.closest('dialog');
    if (answer.location && !(dialog && answer.id)) { location.assign(answer.location); return; }
    dialog?.close();
    document.dispatchEvent(new CustomEvent('quarterdeck:sent', { detail: answer }));
    if (!document.getElementById('board')) location.reload();
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  } finally {
    button?.removeAttribute('disabled');
  }
}

document.addEventListener('submit', (event) => {
  const form = event.target;
  if (form.dataset.confirm && !confirm(form.dataset.confirm)) { event.preventDefault(); return; }
  if ('async' in form.dataset && !(event.submitter && 'plain' in event.submitter.dataset)) {
    event.preventDefault();
    send(form, event.submitter);
  }
});

document.addEventListener('click', (event) => {
  const target = event.target.closest('[data-sheet], [data-close], [data-copy]');
  if (!target || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if ('sheet' in target.dataset) {
    event.preventDefault();
    openSheet(target.getAttribute('href'));
  } else if ('close' in target.dataset && target.closest('dialog')) {
    event.preventDefault();
    target.closest('dialog').close();
  } else if (target.dataset.copy) {
    navigator.clipboard?.writeText(document.getElementById(target.dataset.copy).textContent)
      .then(() => say('Copied'), () => say('Select it and copy it by hand'));
  }
});

// On a small screen the menu is a strip: show where we are.
document.querySelector('nav [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' });

// A click beside a dialog closes it.
for (const dialog of document.querySelectorAll('dialog')) {
  dialog.addEventListener('mousedown', (event) => { if (event.target === dialog) dialog.close(); });
}

const STEPS = [[60, 1, 's'], [3600, 60, 'min'], [86400, 3600, 'h'], [86400 * 60, 86400, 'd'], [Infinity, 86400 * 30, 'mo']];

function refreshTimes() {
  for (const time of document.querySelectorAll('time')) {
    const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(time.dateTime)) / 1000));
    const [, size, unit] = STEPS.find(([limit]) => seconds < limit);
    const text = seconds < 5 ? 'now' : `${Math.floor(seconds / size)} ${unit} ago`;
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(() => { if (!document.hidden) refreshTimes(); }, 20000);

/** Whether keys belong to a field just now. */
export function typing(event) {
  return event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]') ||
    event.target.closest('input, textarea, select, [contenteditable]');
}

document.addEventListener('keydown', (event) => {
  if (typing(event)) return;
  if (event.key === '/') {
    const find = document.querySelector('input[type="search"]');
    if (find) { event.preventDefault(); find.focus(); find.select(); }
  } else if (event.key === 'n') {
    const fresh = document.querySelector('.head [data-sheet]');
    if (fresh) { event.preventDefault(); fresh.click(); }
  }
});
