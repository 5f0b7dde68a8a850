// A job's steps and its log as they happen. Text is only ever set as text, or made by the server.
import { piece } from './app.js';

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

/** What was added to the end of a list is seen, unless somebody reads further up. */
function grow(within, ...items) {
  const follows = within.scrollTop + within.clientHeight >= within.scrollHeight - 40;
  within.append(...items);
  while (within.children.length > MOST) within.firstElementChild.remove();
  if (follows) within.scrollTop = within.scrollHeight;
}

const log = document.getElementById('log');
let reached = '';
let asking = false;

/** Ask for what the agent has said since; the server tells whole lines only. */
async function hear() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    let before;
    do {
      before = reached;
      const found = (await piece(`/jobs/${log.dataset.job}/log?offset=${reached}`)).firstElementChild;
      reached = found.dataset.offset;
      if (found.children.length) log.closest('.live-log').hidden = false;
      grow(log, ...found.children);
    } while (before !== reached && before !== '');
  } catch { /* the next change asks again */ }
  asking = false;
}

if (log) {
  hear();
  setInterval(hear, 4000);
  document.addEventListener('quarterdeck:change', ({ detail }) => { if (detail.id === log.dataset.job) hear(); });
}

if (list) {
  list.scrollTop = list.scrollHeight;
  document.addEventListener('quarterdeck:change', ({ detail }) => {
    if (detail.id !== job) return;
    // On a task's page the page itself follows the job's end.
    if (detail.kind !== 'job.progress') { if (!document.getElementById('task')) location.reload(); return; }
    const last = Number(list.lastElementChild?.dataset.seq ?? 0);
    if (detail.seq <= last) return;
    document.getElementById('no-steps')?.remove();
    grow(list, step(detail));
  });
  document.addEventListener('quarterdeck:reset', () => { if (!document.getElementById('task')) location.reload(); });
}
