// Keeps a part of a page as it is on the server: [data-fresh] names the kinds of change it shows.
const part = document.getElementById('fresh');
const nouns = (part?.dataset.fresh ?? '').split(' ');
let due = 0;

function busy() {
  const active = document.activeElement;
  return part.contains(active) && active.matches('input, textarea, select');
}

async function renew() {
  due = 0;
  if (busy()) { later(2000); return; }
  const response = await fetch(location.href, { headers: { Accept: 'text/html' } });
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), 'text/html').getElementById('fresh');
  if (!fresh || busy()) return;
  const open = [...part.querySelectorAll('details')].map((one) => one.open);
  const details = [...fresh.querySelectorAll('details')];
  if (details.length === open.length) details.forEach((one, index) => { one.open = open[index]; });
  const focused = document.activeElement?.id;
  part.replaceChildren(...fresh.childNodes);
  if (focused) document.getElementById(focused)?.focus();
}

function later(wait = 300) {
  if (!due) due = setTimeout(renew, wait);
}

if (part) {
  document.addEventListener('quarterdeck:change', (event) => {
    if (nouns.includes(event.detail.kind.split('.')[0]) && event.detail.kind !== 'job.progress') later();
  });
  document.addEventListener('quarterdeck:reset', () => later());
}
