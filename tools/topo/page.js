/* The page of tutti-topo draw: steps through graphs and their channels. All that is shown comes from the JSON in it. */
'use strict';
(function () {
  const data = JSON.parse(document.getElementById('data').textContent);
  const byId = (id) => document.getElementById(id);
  const svg = document.querySelector('figure svg'), tip = byId('tip');
  const ways = svg.querySelector('.way');
  let graph = -1, channel = -1; /* -1: the machine alone; all channels */

  const number = (value) => String(Number(value.toPrecision(4)));
  const lineOf = (link) => Math.min(link, data.links[link].r);
  const name = (node) => data.nodes[node];
  const element = (tag, text, type) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (type) made.className = type;
    return made;
  };

  /* What channels use of each link. */
  function loads(graph, channels) {
    const used = new Map();
    for (const channel of channels)
      for (const [hop, bandwidth] of channel)
        for (const link of data.hops[hop].l) used.set(link, (used.get(link) || 0) + bandwidth);
    return used;
  }
  data.graphs.forEach((g) => { g.used = loads(g, g.channels); });

  function fill(id, heads, rows) {
    const table = byId(id), head = element('thead'), body = element('tbody'), top = element('tr');
    for (const text of heads) {
      const cell = element('th', text.replace(/^#/, ''), text[0] === '#' ? 'number' : '');
      cell.scope = 'col';
      top.append(cell);
    }
    head.append(top);
    for (const row of rows) {
      const line = element('tr', undefined, row.over ? 'over' : '');
      row.cells.forEach((cell, i) => {
        const made = element('td', cell instanceof Node ? undefined : cell, heads[i][0] === '#' ? 'number' : '');
        if (cell instanceof Node) made.append(cell);
        line.append(made);
      });
      if (row.show) {
        line.tabIndex = 0;
        for (const [on, shown] of [['mouseenter', true], ['focus', true], ['mouseleave', false], ['blur', false]])
          line.addEventListener(on, () => row.show(shown));
      }
      body.append(line);
    }
    table.replaceChildren(head, body);
  }

  function share(used, of) {
    const meter = document.createElement('meter');
    meter.max = 1;
    meter.value = Math.min(1, used / of);
    meter.setAttribute('aria-label', Math.round(100 * used / of) + ' %');
    const cell = element('span', Math.round(100 * used / of) + ' % ');
    cell.append(meter);
    return cell;
  }

  function showLinks(own) {
    const g = data.graphs[graph], heads = ['link', 'type', '#GB/s'];
    if (g) heads.push('#used by ' + (channel < 0 ? 'all channels' : 'this channel'));
    if (g && channel >= 0) heads.push('#by all');
    if (g) heads.push('#share');
    const rows = [];
    data.links.forEach((link, i) => {
      if (link.t === 'LOC' || (g ? !own.has(i) : lineOf(i) !== i)) return;
      const cells = [name(link.a) + (g ? ' \u2192 ' : ' \u2013 ') + name(link.b), link.t, number(link.w)];
      const all = g ? g.used.get(i) || 0 : 0;
      if (g) cells.push(number(own.get(i)));
      if (g && channel >= 0) cells.push(number(all));
      if (g) cells.push(share(all, link.w));
      rows.push({ cells, key: all / link.w, over: all > link.w * 1.001 });
    });
    if (g) rows.sort((a, b) => b.key - a.key);
    fill('links', heads, rows);
    byId('links-title').textContent = g ? 'Links in use' : 'Links';
  }

  function showHops() {
    const g = data.graphs[graph], section = byId('hops-section');
    section.hidden = !g;
    if (!g) return;
    if (channel < 0) {
      fill('hops', ['channel', 'order'], g.channels.map((hops, c) => ({ cells: [String(c), g.orders[c]] })));
    } else {
      fill('hops', ['from', 'to', 'path', '#GB/s', '#used', 'way'], g.channels[channel].map(([hop, bandwidth], i) => {
        const h = data.hops[hop], nodes = h.l.map((link) => name(data.links[link].b));
        return {
          cells: [name(h.f), name(h.t), h.y, number(h.w), number(bandwidth), nodes.slice(0, -1).join(', ')],
          show: (shown) => {
            ways.classList.toggle('some', shown);
            ways.children[i].classList.toggle('hot', shown);
          },
        };
      }));
    }
    byId('hops-title').textContent = channel < 0 ? 'Channels' : 'Hops of channel ' + channel;
  }

  function showPicture(own) {
    const g = data.graphs[graph];
    svg.setAttribute('class', !g ? '' : channel < 0 ? 'loads' : 'channel');
    ways.replaceChildren();
    ways.setAttribute('class', 'way');
    const nodes = new Set(), heat = new Map();
    for (const [hop, , both] of g && channel >= 0 ? g.channels[channel] : []) {
      const h = data.hops[hop], path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
      path.setAttribute('d', h.d || 'M0 0');
      path.setAttribute('data-hop', hop);
      path.setAttribute('marker-end', 'url(#arrow)');
      if (both) path.setAttribute('marker-start', 'url(#arrow)');
      if (!h.d) path.setAttribute('display', 'none');
      ways.append(path);
      nodes.add(h.f);
      for (const link of h.l) nodes.add(data.links[link].b);
    }
    own.forEach((used, link) => {
      heat.set(lineOf(link), Math.max(heat.get(lineOf(link)) || 0, used / data.links[link].w));
    });
    for (const shape of svg.querySelectorAll('[data-link]')) {
      const most = heat.get(Number(shape.dataset.link));
      shape.classList.remove('h1', 'h2', 'h3', 'h4', 'h5');
      shape.classList.toggle('used', most !== undefined);
      if (most !== undefined) shape.classList.add('h' + Math.max(1, Math.min(5, Math.ceil(most * 5 - 0.005))));
    }
    for (const shape of svg.querySelectorAll('[data-node]'))
      shape.classList.toggle('on', nodes.has(Number(shape.dataset.node)));
  }

  function position(g) {
    const count = g.channels.length;
    if (channel < 0) return count > 1 ? 'all ' + count + ' channels' : 'the only channel';
    return 'channel ' + channel + (count > 1 ? ' of 0\u2013' + (count - 1) : '');
  }

  function show() {
    const g = data.graphs[graph];
    if (g && channel >= g.channels.length) channel = g.channels.length - 1;
    const own = g ? (channel < 0 ? g.used : loads(g, [g.channels[channel]])) : new Map();
    const view = !g ? 'machine' : channel < 0 ? g.name : g.name + '/' + channel;
    byId('graphs').querySelectorAll('button').forEach((b, i) => b.setAttribute('aria-pressed', i - 1 === graph));
    byId('channels').hidden = !g;
    byId('which').textContent = g ? position(g) : '';
    byId('all').setAttribute('aria-pressed', channel < 0);
    byId('said').textContent = !g ? data.said : g.said + (channel < 0 ? '' : '. Channel ' + channel + ': ' + g.orders[channel]);
    showPicture(own);
    showHops();
    showLinks(own);
    document.body.dataset.view = view;
    if (location.hash || g) history.replaceState(null, '', '#' + view);
  }

  function step(by) {
    const g = data.graphs[graph];
    if (!g) return;
    channel += by;
    if (channel < -1) channel = g.channels.length - 1;
    if (channel >= g.channels.length) channel = -1;
    show();
  }
  function choose(which) {
    graph = which;
    channel = graph < 0 ? -1 : Math.max(channel, 0);
    show();
  }
  function go() {
    const [what, which] = (location.hash.slice(1) || document.body.dataset.start).split('/');
    graph = data.graphs.findIndex((g) => g.name === what);
    channel = graph >= 0 && /^\d+$/.test(which || '') ? Number(which) : -1;
    show();
  }

  ['machine', ...data.graphs.map((g) => g.name)].forEach((text, i) => {
    const button = element('button', text);
    button.type = 'button';
    button.addEventListener('click', () => choose(i - 1));
    byId('graphs').append(button);
  });
  byId('previous').addEventListener('click', () => step(-1));
  byId('next').addEventListener('click', () => step(1));
  byId('all').addEventListener('click', () => { channel = channel < 0 ? 0 : -1; show(); });
  const figure = document.querySelector('figure');
  const fit = () => byId('fit').setAttribute('aria-pressed', figure.classList.toggle('fit'));
  byId('fit').addEventListener('click', fit);
  if (figure.clientWidth < 0.55 * svg.viewBox.baseVal.width) fit(); /* nobody could read it */
  const around = (by) => ((graph + 1 + by + data.graphs.length + 1) % (data.graphs.length + 1)) - 1;
  const keys = {
    ArrowRight: () => step(1), n: () => step(1), ArrowLeft: () => step(-1), p: () => step(-1),
    g: () => choose(around(1)), G: () => choose(around(-1)), m: () => choose(-1),
    a: () => { channel = -1; show(); },
  };
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || !Object.hasOwn(keys, event.key)) return;
    const within = event.target instanceof Element && event.target.closest('figure, .scroll');
    if (event.key.startsWith('Arrow') && within) return; /* they scroll that */
    event.preventDefault();
    keys[event.key]();
  });

  /* What is pointed at, with what is used of it. */
  svg.addEventListener('mousemove', (event) => {
    const shape = event.target.closest('[data-tip], [data-link]');
    tip.hidden = !shape;
    if (!shape) return;
    let text = shape.dataset.tip || svg.querySelector('.line[data-link="' + shape.dataset.link + '"]').dataset.tip;
    const g = data.graphs[graph];
    if (g && shape.dataset.link) {
      const link = Number(shape.dataset.link), back = data.links[link].r;
      const own = channel < 0 ? g.used : loads(g, [g.channels[channel]]);
      text += '; used ' + number(own.get(link) || 0) + ' and back ' + number(own.get(back) || 0);
    }
    tip.textContent = text;
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 4)) + 'px';
    const below = event.clientY + 26 + tip.offsetHeight <= innerHeight;
    tip.style.top = (below ? event.clientY + 16 : event.clientY - 10 - tip.offsetHeight) + 'px';
  });
  svg.addEventListener('mouseleave', () => { tip.hidden = true; });
  addEventListener('hashchange', go);
  go();
})();
