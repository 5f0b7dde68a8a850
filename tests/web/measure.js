// What a person with weak eyes, or with a screen reader, would miss on this page.
() => {
  const problems = [];
  const seen = (node) => {
    const box = node.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && node.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: false });
  };
  const colour = (text) => {
    const parts = (text.match(/[\d.]+/g) ?? ['0', '0', '0', '0']).map(Number);
    return text.startsWith('color(') ? [...parts.slice(0, 3).map((one) => one * 255), parts[3] ?? 1] : [parts[0], parts[1], parts[2], parts[3] ?? 1];
  };
  const over = (top, below) => [0, 1, 2].map((n) => top[n] * top[3] + below[n] * (1 - top[3]));
  const ground = (node) => {
    const layers = [];
    for (let one = node; one; one = one.parentElement) {
      const layer = colour(getComputedStyle(one).backgroundColor);
      if (layer[3] > 0) layers.push(layer);
      if (layer[3] === 1) break;
    }
    let found = [255, 255, 255];
    for (const layer of layers.reverse()) found = over(layer, found);
    return found;
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((one) => { const part = one / 255; return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((m, n) => n - m); return (x + 0.05) / (y + 0.05); };
  const named = (node) => node.tagName.toLowerCase() + (node.id ? `#${node.id}` : '') + (node.className && typeof node.className === 'string' ? `.${node.className.trim().replaceAll(' ', '.')}` : '');

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const done = new Set();
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || done.has(node) || node.closest('svg, option, [disabled], script') || !seen(node)) continue;
    done.add(node);
    const style = getComputedStyle(node);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const back = ground(node);
    const found = ratio(over(colour(style.color), back), back);
    if (found < (large ? 3 : 4.5)) problems.push(`contrast ${found.toFixed(2)}: ${named(node)} "${walker.currentNode.textContent.trim().slice(0, 30)}"`);
  }
  for (const node of document.querySelectorAll('svg.plot text')) {
    const back = ground(node.closest('svg'));
    if (ratio(over(colour(getComputedStyle(node).fill), back), back) < 4.5) problems.push(`contrast of a plot: ${node.textContent}`);
  }
  for (const node of document.querySelectorAll('button, a[href], input:not([type=hidden]), select, textarea, summary, dialog, [role=img], progress, meter')) {
    const labels = [...(node.labels ?? [])].map((one) => one.textContent).join('');
    const by = (node.getAttribute('aria-labelledby') ?? '').split(' ').map((id) => document.getElementById(id)?.textContent ?? '').join('');
    const field = node.matches('input, select, textarea, progress, meter, [role=img], dialog');
    const name = node.getAttribute('aria-label') || by || labels || (field ? '' : node.textContent) || '';
    if (!name.trim()) problems.push(`no name: ${named(node)}`);
  }
  for (const node of document.querySelectorAll('img:not([alt])')) problems.push(`no alt: ${named(node)}`);
  const ids = [...document.querySelectorAll('[id]')].map((node) => node.id);
  for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) problems.push(`two of #${id}`);
  if (document.querySelectorAll('h1').length !== 1) problems.push(`${document.querySelectorAll('h1').length} h1`);
  if (!document.documentElement.lang || !document.title.trim()) problems.push('no language or title');
  if (document.documentElement.scrollWidth > innerWidth) problems.push(`wider than the window: ${document.documentElement.scrollWidth}`);
  return problems;
}
