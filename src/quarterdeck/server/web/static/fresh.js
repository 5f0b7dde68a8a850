// Keeps parts of a page as they are on the server: [data-fresh] names the kinds of change that a part shows.
const parts = [...document.querySelectorAll('[data-fresh]')];
let due = 0;

function busy(part) {
  const active = document.activeElement;
  return part.contains(active) && active.matches('input, textarea, select');
}

/** Put the server's part in the place of ours; opened details stay open and the focus where it is. */
function put(part, fresh) {
  const open = [...part.querySelectorAll('details')].map((one) => one.open);
  const details = [...fresh.querySelectorAll('details')];
  if (details.length === open.length) details.forEach((one, index) => { one.open = open[index]; });
  const focused = part.contains(document.activeElement) ? document.activeElement.id : '';
  part.replaceChildren(...fresh.childNodes);
  if (focused) document.getElementById(focused)?.focus();
}

async function renew() {
  due = 0;
  if (parts.some(busy)) { later(2000); return; }
  const response = await fetch(location.href, { headers: { Accept: 'text/html' } });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), 'text/html');
  for (const part of parts) {
    const found = fresh.getElementById(part.id);
    if (found && !busy(part)) put(part, found);
  }
  document.dispatchEvent(new CustomEvent('quarterdeck:renewed', { detail: fresh }));
}

function later(wait = 300) {
  if (!due) due = setTimeout(() => renew().catch(() => later(3000)), wait);
}

document.addEventListener('quarterdeck:change', ({ detail }) => {
  const noun = detail.kind.split('.')[0];
  const shown = parts.some((part) => part.dataset.fresh.split(' ').includes(noun) && (!part.dataset.only || part.dataset.only === detail.task));
  if (shown && detail.kind !== 'job.progress') later();
});
document.addEventListener('quarterdeck:reset', () => { if (parts.length) later(); });
