// One stream of changes for the page. It rests while the page is hidden: a browser allows few connections.
const shown = document.getElementById('live');
let source = null;
let last = document.querySelector('meta[name="seq"]')?.content ?? '0';

function say(state, word) {
  if (!shown) return;
  shown.dataset.state = state;
  shown.querySelector('.live-word').textContent = word;
}

function tell(name, detail) {
  document.dispatchEvent(new CustomEvent(name, { detail }));
}

function open() {
  if (source || document.hidden) return;
  source = new EventSource(`/live?after=${last}`);
  source.addEventListener('ready', () => {
    say('on', 'live');
    document.documentElement.dataset.live = 'yes';
  });
  source.addEventListener('lagged', () => tell('quarterdeck:reset'));
  source.addEventListener('signedout', () => { close(); location.assign('/signin'); });
  source.addEventListener('change', (event) => {
    last = event.lastEventId;
    tell('quarterdeck:change', JSON.parse(event.data));
  });
  source.onerror = () => {
    say('lost', 'reconnecting');
    if (source && source.readyState === EventSource.CLOSED) { close(); setTimeout(open, 3000); }
  };
}

function close() {
  if (source) source.close();
  source = null;
}

document.addEventListener('visibilitychange', () => (document.hidden ? close() : open()));
addEventListener('pagehide', close);
addEventListener('pageshow', (event) => { if (event.persisted) open(); });
// Once every module has said what it listens to.
if (shown) document.addEventListener('DOMContentLoaded', open);
