// A job's steps as they happen. Text is only ever set as text.
import './app.js';

const list = document.getElementById('steps');
const job = list?.dataset.job;
const MOST = 500;

function made(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

// Colours and cursor moves of a terminal; what is left of them is not worth showing.
const plain = (text) => String(text ?? '').replace(/\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07]*(?:\x07|\x1b\\)|.)/g, '');

export function step({ seq, at, data }) {
  const kind = data.step ?? 'note';
  const item = made('li', 'step');
  item.dataset.seq = seq;
  if (data.tool) {
    const details = made('details');
    const summary = made('summary');
    summary.append(made('span', 'step-kind', kind.replaceAll('_', ' ')), ' ', made('code', '', data.tool));
    details.append(summary, made('pre', '', plain(data.text)));
    item.append(details);
  } else {
    item.append(made('span', 'step-kind', kind.replaceAll('_', ' ')), made('span', 'step-text', plain(data.text ?? data.message ?? data.artifact)));
  }
  const when = made('span', 'step-at');
  const time = made('time', '', 'now');
  time.dateTime = new Date(at / 1000).toISOString();
  when.append(time);
  item.append(when);
  return item;
}

if (list) {
  list.scrollTop = list.scrollHeight;
  document.addEventListener('quarterdeck:change', ({ detail }) => {
    if (detail.id !== job) return;
    // On a task's page the page itself follows the job's end.
    if (detail.kind !== 'job.progress') { if (!document.getElementById('task')) location.reload(); return; }
    const last = Number(list.lastElementChild?.dataset.seq ?? 0);
    if (detail.seq <= last) return;
    const follows = list.scrollTop + list.clientHeight >= list.scrollHeight - 40;
    document.getElementById('no-steps')?.remove();
    list.append(step(detail));
    while (list.children.length > MOST) list.firstElementChild.remove();
    if (follows) list.scrollTop = list.scrollHeight;
  });
  document.addEventListener('quarterdeck:reset', () => { if (!document.getElementById('task')) location.reload(); });
}
