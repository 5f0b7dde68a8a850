// A task's page: the live steps of its run, its changes, and comments on lines that go back with "reject".
import { piece, say } from './app.js';
import './fresh.js';
import './job.js';

const page = document.getElementById('task');
const id = page.dataset.id;
const diff = document.getElementById('diff');
const field = document.getElementById('comments');
const kept = `quarterdeck.remarks.${id}`;
let remarks = [];

try { remarks = JSON.parse(sessionStorage.getItem(kept) ?? '[]'); } catch { remarks = []; }

function keep() {
  sessionStorage.setItem(kept, JSON.stringify(remarks));
  if (!field) return;
  field.value = JSON.stringify(remarks);
  const note = document.getElementById('remarks');
  note.textContent = remarks.length
    ? `${remarks.length} comment${remarks.length === 1 ? '' : 's'} on lines go${remarks.length === 1 ? 'es' : ''} with it.`
    : 'Comments on lines of the changes go with it.';
}

const same = (one, path, line, repo) => one.path === path && one.line === line && (one.repo ?? '') === (repo ?? '');

/** A row below a line, in which a comment is written. */
function remarkRow(row, remark) {
  const below = document.createElement('tr');
  below.className = 'remark';
  const cell = document.createElement('td');
  cell.colSpan = row.closest('tbody').querySelector('.hunk td').colSpan;
  const form = document.createElement('form');
  form.className = 'form';
  const label = document.createElement('label');
  label.textContent = `Comment on line ${remark.line}`;
  const text = document.createElement('textarea');
  text.rows = 2;
  text.value = remark.text;
  label.append(text);
  const acts = document.createElement('div');
  acts.className = 'actions';
  const save = document.createElement('button');
  save.type = 'submit';
  save.textContent = 'Keep';
  const drop = document.createElement('button');
  drop.type = 'button';
  drop.className = 'quiet';
  drop.textContent = 'Remove';
  acts.append(save, drop);
  form.append(label, acts);
  cell.append(form);
  below.append(cell);
  row.after(below);
  const forget = () => { remarks = remarks.filter((one) => !same(one, remark.path, remark.line, remark.repo)); };
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    forget();
    if (text.value.trim()) remarks.push({ ...remark, text: text.value.trim() });
    keep();
    say('Kept; it goes with "Reject"');
    row.querySelector('.say')?.focus();
  });
  drop.addEventListener('click', () => { forget(); keep(); below.remove(); row.querySelector('.say')?.focus(); });
  return text;
}

function placeOf(row) {
  const file = row.closest('.diff');
  const place = { path: file.dataset.path, line: Number(row.dataset.line) };
  return file.dataset.repo ? { ...place, repo: file.dataset.repo } : place;
}

async function showDiff() {
  if (!diff) return;
  try {
    diff.replaceChildren(await piece(diff.dataset.path));
  } catch (error) {
    say(error.message);
    return;
  }
  for (const row of diff.querySelectorAll('tr[data-line]')) {
    const { path, line, repo } = placeOf(row);
    const remark = remarks.find((one) => same(one, path, line, repo));
    if (remark && field) remarkRow(row, remark);
  }
}

diff?.addEventListener('click', (event) => {
  const row = event.target.closest('.say')?.closest('tr');
  if (!row) return;
  if (row.nextElementSibling?.classList.contains('remark')) row.nextElementSibling.querySelector('textarea').focus();
  else remarkRow(row, { ...placeOf(row), text: '' }).focus();
});

document.getElementById('reject')?.addEventListener('submit', () => { sessionStorage.removeItem(kept); });

// The review form and the changes come and go with the task's state: then the page is made anew.
document.addEventListener('quarterdeck:renewed', ({ detail }) => {
  const parts = ['review', 'changes', 'running'];
  if (parts.some((name) => Boolean(detail.getElementById(name)) !== Boolean(document.getElementById(name)))) location.reload();
});

keep();
showDiff();
