'use strict';
// Draws a page's charts with ECharts, and lets its reader sort tables, hide series and choose light or dark. Names come
// from anywhere, so all text goes into the document as text; nothing here takes a string for markup.
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById('charts').textContent);
  const drawn = [];

  // ---- Figures -----------------------------------------------------------------------------------------------------

  const grouped = (number) => number.replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f');
  const digits = (value, most = 4) => {
    if (value === 0) return '0';
    const size = Math.abs(value);
    if (size >= 1e15 || size < 1e-6) return value.toExponential(2);
    const text = size >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(most)));
    const [whole, rest] = text.split('.');
    return grouped(whole) + (rest ? `.${rest}` : '');
  };
  const BYTES = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  const bytes = (value, most) => {
    let size = Math.abs(value), unit = 0;
    while (size >= 999.95 && unit + 1 < BYTES.length) { size /= 1000; unit++; }
    return `${value < 0 ? '-' : ''}${digits(size, most)} ${BYTES[unit]}`;
  };
  /** As PostgreSQL writes sizes in its settings, in powers of 1024. */
  const SETTINGS = ['B', 'kB', 'MB', 'GB', 'TB'];
  const setting = (value, most) => {
    let size = Math.abs(value), unit = 0;
    while (size >= 1024 && unit + 1 < SETTINGS.length) { size /= 1024; unit++; }
    return `${value < 0 ? '-' : ''}${digits(size, most)}${SETTINGS[unit]}`;
  };
  const seconds = (value, most) => {
    const size = Math.abs(value);
    if (size > 0 && size < 1) return `${digits(value * 1e3, most)} ms`;
    if (size < 120) return `${digits(value, most)} s`;
    const whole = Math.round(value), pad = (part) => String(part).padStart(2, '0');
    if (size < 7200) return `${Math.floor(whole / 60)} min${whole % 60 ? ` ${whole % 60} s` : ''}`;
    return `${digits(Math.floor(whole / 3600))} h${Math.round(whole / 60) % 60 ? ` ${pad(Math.floor(whole / 60) % 60)} min` : ''}`;
  };
  const UNITS = {
    bytes: { short: (v) => bytes(v, 3), exact: (v) => v < 1000 ? bytes(v) : `${bytes(v)} (${grouped(v.toFixed(0))} bytes)` },
    setting_bytes: { short: (v) => setting(v, 3), exact: (v) => setting(v) },
    bytes_per_second: { short: (v) => `${bytes(v, 3)}/s`, exact: (v) => `${bytes(v)}/s` },
    count: { short: (v) => v >= 1e6 ? `${digits(v / 1e6, 3)} M` : digits(v), exact: (v) => grouped(String(v)) },
    seconds: { short: (v) => seconds(v, 3), exact: (v) => v < 120 ? seconds(v) : `${seconds(v)} (${digits(v)} s)` },
    share: { short: (v) => `${digits(v * 100, 3)} %`, exact: (v) => `${digits(v * 100)} %` },
    plain: { short: (v) => digits(v, 3), exact: (v) => digits(v, 6) },
  };
  const time = (at, width) => {
    const text = new Date(at).toISOString();
    return `${text.slice(0, 10)} ${text.slice(11, width % 1000 ? 23 : 19)}`;
  };

  // ---- Colours -----------------------------------------------------------------------------------------------------

  const PALETTE = [
    ['#2b7bba', '#57a0dc'], ['#d9730d', '#f09a4e'], ['#3c9a5f', '#5fbf85'], ['#8e5cc2', '#b48ae0'],
    ['#8c564b', '#b98377'], ['#d15aa0', '#e587bf'], ['#0f96aa', '#45bccd'], ['#8a8f14', '#bcc04a'],
    ['#4650be', '#8a92f0'], ['#6e6e6e', '#a8a8a8'], ['#b4823c', '#d3a768'], ['#c0392b', '#f0776a'],
  ];
  const dark = () => root.dataset.theme === 'dark';
  const css = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  /** Is dark text easier to read on this colour than white? */
  const bright = (colour) => {
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return red * 0.299 + green * 0.587 + blue * 0.114 > 135;
  };
  const tones = () => {
    let next = 0;
    return (tone) => tone && tone !== 'next' ? css(tone.replaceAll('_', '-')) : PALETTE[next++ % PALETTE.length][dark() ? 1 : 0];
  };

  // ---- Parts of charts ---------------------------------------------------------------------------------------------

  const element = (name, attributes = {}, ...children) => {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...children);
    return made;
  };
  const swatch = (colour, line) => {
    const made = element('i');
    if (line) { made.className = 'line'; made.style.borderColor = colour; } else made.style.background = colour;
    return made;
  };
  /** What a tooltip shows: a heading, and rows of [colour, name, value]. */
  const tip = (heading, rows, ...lines) => {
    const body = element('tbody', {}, ...rows.map(([colour, name, value]) => element('tr', {},
      element('td', {}, ...(colour ? [swatch(colour)] : []), name), element('td', { className: 'n' }, value))));
    return element('div', { className: 'tip' }, element('b', {}, heading), element('table', {}, body),
      ...lines.map((line) => element('div', {}, line)));
  };
  const tooltip = (trigger, formatter) => ({
    trigger, formatter, confine: true, transitionDuration: 0, backgroundColor: css('ground'), borderColor: css('line'),
    textStyle: { color: css('ink') }, axisPointer: { type: trigger === 'axis' ? 'line' : 'none', lineStyle: { color: css('soft') } },
  });
  const TICKS = [[1], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 1.1, 1.2, 1.3, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9]];
  /** Bounds and ticks of a logarithmic scale: the library's own are powers of ten only. */
  const logarithmic = (values, most, unit) => {
    // Beyond these nothing is measured, and a ratio of two would not be finite.
    const usable = values.filter((value) => value > 1e-15 && value < 1e18);
    if (!usable.length) return { min: 1, max: 10, ticks: [1, 10] };
    const least = Math.min(...usable), largest = Math.max(...usable), room = Math.max((largest / least) ** 0.06, 1.15);
    const [min, max] = [least / room, largest * room];
    const within = (steps) => {
      const ticks = [];
      for (let decade = Math.floor(Math.log10(min)); decade <= Math.ceil(Math.log10(max)); decade++) {
        for (const step of steps) {
          const tick = Number((step * 10 ** decade).toPrecision(3));
          if (tick >= min && tick <= max) ticks.push(tick);
        }
      }
      return ticks;
    };
    const powers = () => {
      const ticks = [];
      for (let power = Math.ceil(Math.log2(min)); 2 ** power <= max; power++) ticks.push(2 ** power);
      return ticks;
    };
    const all = unit === 'setting_bytes' ? [powers()] : TICKS.map(within);
    let ticks = all.find((found) => found.length >= Math.min(4, most)) ?? all.at(-1);
    if (ticks.length > most) {
      const every = Math.ceil(ticks.length / most);
      ticks = ticks.filter((_, index) => index % every === 0);
    }
    return { min, max, ticks };
  };
  const axis = (described, values, { horizontal, width, ...more }) => {
    const made = {
      type: 'value', name: described.name, nameLocation: 'middle', nameGap: horizontal ? 30 : 58,
      nameTextStyle: { color: css('soft'), fontSize: 12 },
      axisLabel: { color: css('soft'), fontSize: 12, hideOverlap: true, formatter: (value) => UNITS[described.unit].short(value) },
      axisLine: { show: horizontal, lineStyle: { color: css('line') } }, axisTick: { show: false },
      splitLine: { lineStyle: { color: css('grid') } }, splitNumber: horizontal && width < 500 ? 3 : 5, ...(described.unit === 'count' ? { minInterval: 1 } : {}), ...more,
    };
    if (described.log) {
      const { min, max, ticks } = logarithmic(values, horizontal ? Math.max(3, Math.floor(width / 90)) : 8, described.unit);
      Object.assign(made, { type: 'log', min, max });
      made.axisLabel.customValues = ticks;
      made.axisTick.customValues = ticks;
    }
    return made;
  };
  const grid = (width, more = {}) => ({ left: 70, right: width < 500 ? 14 : 28, top: 22, bottom: 46, ...more });
  const vertical = (marks, colours) => ({
    symbol: 'none', silent: true, animation: false,
    data: marks.map(({ at, name, show = true }) => ({
      xAxis: at, lineStyle: { color: colours(name), type: 'dashed', width: 1 },
      label: { show, formatter: () => name, color: css('soft'), fontSize: 11, position: 'end', rotate: 0, distance: 3 },
    })),
  });

  /** Thin lines between pairs of places: what a figure may be off by. */
  const whiskers = (pairs, colour, lying) => ({
    silent: true, animation: false, symbol: 'rect', symbolSize: lying ? [1.5, 9] : [9, 1.5], symbolRotate: 0, label: { show: false },
    lineStyle: { color: colour, width: 1.5, type: 'solid' }, itemStyle: { color: colour },
    data: pairs.map(([from, to]) => [{ coord: from }, { coord: to }]),
  });

  /** Points that are not seen: a scale makes room for them, and so for what lines between them show. */
  const unseen = (points, more = {}) => points.length ? [{ type: 'scatter', silent: true, symbolSize: 0, data: points, tooltip: { show: false }, ...more }] : [];

  // ---- Kinds of charts ---------------------------------------------------------------------------------------------
  // Each gives the height, the legend (name, colour and whether it can be hidden), and what ECharts is to draw.

  const CAUSES = { volume: 'image-checkpoint', time: 'data', requested: 'image-hint', shutdown: 'soft', first: 'soft' };
  const cause = (name) => css(CAUSES[name] ?? 'soft');

  const KINDS = {
    stacked_over_time(chart, { width, hidden }) {
      const tone = tones(), unit = UNITS[chart.y.unit];
      const layers = chart.layers.map((layer) => ({ ...layer, colour: tone(layer.tone) }));
      const shown = layers.filter((layer) => !hidden.has(layer.name));
      const centre = (start) => start + chart.width / 2;
      const names = [...new Set(chart.marks.map((mark) => mark.name))];
      const hint = (params) => {
        const at = params[0].dataIndex, start = chart.starts[at];
        const rows = shown.filter((layer) => layer.values[at]).map((layer) => [layer.colour, layer.name, unit.exact(layer.values[at])]);
        const sum = shown.reduce((total, layer) => total + (layer.values[at] ?? 0), 0);
        const marks = chart.marks.filter((mark) => mark.at >= start && mark.at < start + chart.width);
        return tip(`${time(start, chart.width)} UTC, ${seconds(chart.width / 1e3)}`,
          [...rows.reverse(), [null, 'all', unit.exact(sum)]], ...marks.map((mark) => `${time(mark.at, chart.width)} ${mark.name}`));
      };
      const first = chart.starts[0], last = chart.starts.at(-1) + chart.width;
      return {
        height: 340,
        legend: [...layers.map((layer) => [layer.name, layer.colour, true]), ...names.map((name) => [name, cause(name.split(' ').at(-1)), false, true])],
        option: {
          grid: grid(width), tooltip: tooltip('axis', hint),
          xAxis: axis({ name: 'UTC', unit: 'plain' }, [], {
            horizontal: true, width, type: 'time', min: first, max: last, splitLine: { show: false },
            axisLabel: { color: css('soft'), fontSize: 12, hideOverlap: true },
          }),
          yAxis: axis(chart.y, [], { horizontal: false }),
          series: shown.map((layer, index) => ({
            type: 'bar', stack: 'all', name: layer.name, itemStyle: { color: layer.colour }, emphasis: { disabled: true },
            barCategoryGap: chart.starts.length > 40 ? '0%' : '8%',
            data: chart.starts.map((start, at) => [centre(start), layer.values[at]]),
            ...(index === 0 ? { markLine: vertical(chart.marks.map((mark) => ({ ...mark, show: false })), (name) => cause(name.split(' ').at(-1))) } : {}),
          })),
        },
      };
    },

    checkpoint_timeline(chart, { width }) {
      const points = [], marks = [], starts = [];
      let at = 0;
      for (const cycle of chart.cycles) {
        const known = cycle.shares.filter((share) => share !== null);
        starts.push(at);
        if (cycle.cause) marks.push({ at, name: cycle.cause });
        const step = cycle.bytes / Math.max(known.length, 1);
        known.forEach((share, index) => points.push([at + index * step, share], [at + (index + 1) * step, share]));
        at += cycle.bytes;
      }
      const total = at;
      const hint = (params) => {
        const here = params[0].axisValue ?? params[0].value[0];
        let index = starts.findLastIndex((start) => start <= here);
        index = Math.max(index, 0);
        const cycle = chart.cycles[index], known = cycle.shares.filter((share) => share !== null);
        const part = Math.min(known.length - 1, Math.floor((here - starts[index]) / cycle.bytes * known.length));
        return tip(cycle.label, [
          [null, 'its checkpoint came for', cycle.cause ?? 'not known'],
          [null, 'written until the next', UNITS.bytes.exact(cycle.bytes)],
          [null, 'images in it', `${UNITS.bytes.short(cycle.image_bytes)}, ${UNITS.share.short(cycle.image_bytes / Math.max(cycle.bytes, 1))}`],
          [null, 'images here', known.length ? UNITS.share.short(known[Math.max(part, 0)]) : ''],
        ]);
      };
      const causes = [...new Set(marks.map((mark) => mark.name))];
      return {
        height: 280,
        legend: [['share of images', css('image-checkpoint'), false], ...causes.map((name) => [`checkpoint: ${name}`, cause(name), false, true])],
        option: {
          grid: grid(width), tooltip: tooltip('axis', hint),
          xAxis: axis({ name: 'WAL from the beginning of what was read', unit: 'bytes' }, [], { horizontal: true, width, min: 0, max: total, splitLine: { show: false } }),
          yAxis: axis({ name: 'share of images', unit: 'share' }, [], { horizontal: false, min: 0, max: 1 }),
          series: [{
            type: 'line', data: points, symbol: 'none', lineStyle: { color: css('image-checkpoint'), width: 1 }, itemStyle: { color: css('image-checkpoint') },
            areaStyle: { color: css('image-checkpoint'), opacity: 0.35 }, emphasis: { disabled: true },
            markLine: vertical(marks.map((mark) => ({ ...mark, show: marks.length < width / 60 })), cause),
          }],
        },
      };
    },

    treemap(chart, { width }) {
      const unit = UNITS[chart.unit], tone = tones(), total = chart.nodes.reduce((sum, node) => sum + node.value, 0);
      const node = (one, above) => ({
        name: one.name, value: one.value, one, above, ...look(one),
        children: one.parts.length ? one.parts.map((part) => node(part, one)) : undefined,
      });
      const look = (one) => {
        if (one.parts.length) return { itemStyle: { color: css('card'), borderColor: css('line') } };
        const color = tone(one.tone);
        return { itemStyle: { color }, label: { color: bright(color) ? '#10151b' : '#fff' } };
      };
      const hint = ({ data }) => data?.one && tip(data.above ? `${data.above.name}: ${data.name}` : data.name, [
        [null, 'size', unit.exact(data.value)], [null, 'of all', UNITS.share.exact(data.value / Math.max(total, 1))],
        ...data.one.facts.map(([name, value]) => [null, name, value]),
      ]);
      const label = { fontSize: 12, lineHeight: 16, formatter: ({ data }) => data.one ? `${data.name}\n${unit.short(data.value)}` : '', overflow: 'truncate' };
      return {
        height: width < 500 ? 420 : 460,
        legend: chart.legend.map(([key, name]) => [name, css(key.replaceAll('_', '-')), false]),
        option: {
          tooltip: tooltip('item', hint),
          series: [{
            type: 'treemap', left: 0, right: 0, top: 0, bottom: 0, roam: false, nodeClick: false, breadcrumb: { show: false },
            label, emphasis: { disabled: true }, itemStyle: { borderColor: css('ground'), borderWidth: 1, gapWidth: 1 },
            upperLabel: { show: true, height: 20, color: css('ink'), fontSize: 12, overflow: 'truncate', formatter: ({ data }) => data.one ? `${data.name}  ${unit.short(data.value)}` : '' },
            levels: [{ upperLabel: { show: false }, itemStyle: { borderWidth: 0, gapWidth: 3 } }, { itemStyle: { borderWidth: 2, gapWidth: 1 } }, {}],
            visibleMin: 30, data: chart.nodes.map((one) => node(one, null)),
          }],
        },
      };
    },

    bars(chart, { width, hidden }) {
      const tone = tones(), unit = UNITS[chart.x.unit];
      const layers = chart.layers.map((layer) => ({ ...layer, colour: tone(layer.tone) }));
      const shown = layers.filter((layer) => !hidden.has(layer.name));
      const errors = chart.stacked || shown.length === 1 ? chart.errors : [];
      const end = (at) => shown.reduce((total, layer) => total + (layer.values[at] ?? 0), 0);
      const ends = errors.map((error, at) => [at, error]).filter(([, error]) => error).map(([at, error]) => [at, Math.max(end(at) - error, 0), end(at) + error]);
      const values = [...shown.flatMap((layer) => layer.values), ...ends.flatMap(([, , most]) => most)];
      const rows = chart.categories.length * (chart.stacked ? 1 : Math.max(shown.length, 1));
      const letters = Math.max(...chart.categories.map((name) => name.length), 4);
      const room = Math.min(width * 0.4, 260, letters * 7.5 + 12);
      // Names of bars that stand below each other are broken into lines.
      const breaks = !chart.stacked && shown.length > 1, lines = breaks ? Math.min(Math.ceil(letters * 7.5 / room), 5) : 1;
      const hint = (params) => {
        const at = params[0].dataIndex;
        const known = shown.filter((layer) => layer.values[at] !== null);
        const sum = known.reduce((total, layer) => total + layer.values[at], 0);
        return tip(chart.categories[at], [...known.map((layer) => [layer.colour, layer.name, unit.exact(layer.values[at])]),
          ...(chart.stacked && known.length > 1 ? [[null, 'all', unit.exact(sum)]] : []),
          ...(errors[at] ? [[null, 'may be off by', `\u00b1${unit.exact(errors[at])}`]] : [])]);
      };
      return {
        height: Math.max(rows * 20 + chart.categories.length * 8, chart.categories.length * (lines * 14 + 8), 60) + 60,
        legend: layers.length > 1 ? layers.map((layer) => [layer.name, layer.colour, true]) : [],
        option: {
          grid: grid(width, { left: room + 10, right: chart.stacked ? 28 : 72 }), tooltip: tooltip('axis', hint),
          xAxis: axis(chart.x, values, { horizontal: true, width: width - room }),
          yAxis: {
            type: 'category', data: chart.categories, inverse: true, axisTick: { show: false }, axisLine: { lineStyle: { color: css('line') } },
            axisLabel: { color: css('ink'), fontSize: 12, width: room, overflow: breaks ? 'break' : 'truncate', lineHeight: 14, interval: 0 },
          },
          series: shown.map((layer, index) => ({
            ...(ends.length && index === shown.length - 1 ? { markLine: whiskers(ends.map(([at, least, most]) => [[least, at], [most, at]]), css('ink'), true) } : {}),
            type: 'bar', name: layer.name, stack: chart.stacked ? 'all' : undefined, itemStyle: { color: layer.colour }, emphasis: { disabled: true },
            barMaxWidth: 18, data: layer.values,
            label: chart.stacked ? undefined : { show: true, position: 'right', color: css('soft'), fontSize: 11, formatter: ({ value }) => value === null ? '' : unit.short(value) },
          })).concat(unseen(ends.map(([at, , most]) => [most, at]))),
        },
      };
    },

    predicted_against_measured(chart, { width, hidden }) {
      const tone = tones(), unit = UNITS[chart.axis.unit];
      const usable = chart.points.filter((point) => [point.predicted, point.measured].every((v) => v !== null && (!chart.axis.log || v > 0)));
      const names = [...new Set(usable.map((point) => point.series))];
      const series = names.map((name) => ({ name, colour: tone('next'), points: usable.filter((point) => point.series === name) }));
      const values = usable.flatMap((point) => [point.predicted, point.measured]);
      const bounds = chart.axis.log ? logarithmic(values, 8) : { min: 0, max: Math.max(...values, 0) * 1.05 || 1 };
      const both = { min: bounds.min, max: bounds.max };
      const line = (name, factor, type) => ({
        type: 'line', name, silent: true, symbol: 'none', z: 1, lineStyle: { color: css('soft'), width: 1, type }, tooltip: { show: false },
        // A line through the origin, bent on no scale, cut where it leaves the picture.
        data: factor <= 1 ? [[both.min, both.min * factor], [both.max, both.max * factor]] : [[both.min, both.min * factor], [both.max / factor, both.max]],
        clip: true, emphasis: { disabled: true },
      });
      const beside = chart.tolerance ? [line('', 1 + chart.tolerance, 'dotted'), line('', 1 - chart.tolerance, 'dotted')] : [];
      const hint = ({ data }) => data?.one && tip(data.one.name, [
        [null, 'predicted', unit.exact(data.one.predicted)], [null, 'measured', unit.exact(data.one.measured)],
        [null, 'error', data.one.measured ? `${data.one.predicted > data.one.measured ? '+' : ''}${digits((data.one.predicted / data.one.measured - 1) * 100, 3)} %` : '-'],
      ]);
      return {
        height: Math.min(Math.max(width * 0.6, 300), 480),
        legend: series.length > 1 ? series.map(({ name, colour }) => [name, colour, true]) : [],
        option: {
          grid: grid(width), tooltip: tooltip('item', hint),
          xAxis: axis({ ...chart.axis, name: `measured: ${chart.axis.name}` }, values, { horizontal: true, width, ...both }),
          yAxis: axis({ ...chart.axis, name: `predicted: ${chart.axis.name}` }, values, { horizontal: false, ...both }),
          series: [line('', 1, 'solid'), ...beside, ...series.filter(({ name }) => !hidden.has(name)).map(({ name, colour, points }) => ({
            type: 'scatter', name, symbolSize: 9, itemStyle: { color: colour, opacity: 0.85 }, emphasis: { disabled: true },
            data: points.map((one) => ({ value: [one.measured, one.predicted], one })),
          }))],
        },
      };
    },

    curve(chart, { width, hidden }) {
      const tone = tones();
      const lines = chart.lines.map((line) => ({ ...line, colour: tone(line.tone) }));
      const shown = lines.filter((line) => !hidden.has(line.name));
      const all = lines.flatMap((line) => [...line.predicted, ...line.measured]);
      const ranges = (line) => line.errors.map((error, at) => [line.predicted[at], error]).filter(([point, error]) => point && error > 0)
        .map(([[x, y], error]) => [[x, Math.max(y - error, Math.min(y, 0))], [x, y + error]])
        .filter(([[x, least]]) => Number.isFinite(x) && Number.isFinite(least) && (!chart.x.log || x > 0) && (!(line.right && chart.right || chart.left).log || least > 0));
      const of = (right) => lines.filter((line) => (line.right && Boolean(chart.right)) === right)
        .flatMap((line) => [...line.predicted, ...line.measured, ...ranges(line).flat()]).map(([, y]) => y);
      const ends = all.map(([x]) => x).concat(chart.marks.map((mark) => mark.at));
      const unit = (line) => UNITS[(line.right && chart.right || chart.left).unit];
      const hint = ({ data, seriesIndex }) => {
        const { line, measured } = roles[seriesIndex] ?? {};
        if (!line) return undefined;
        const error = measured ? undefined : line.errors[line.predicted.findIndex(([x, y]) => x === data[0] && y === data[1])];
        return tip(`${chart.x.name}: ${UNITS[chart.x.unit].exact(data[0])}`, [
          [line.colour, `${line.name}, ${measured || line.measured ? 'measured' : 'predicted'}`, unit(line).exact(data[1])],
          ...(error ? [[null, 'may be off by', `\u00b1${unit(line).exact(error)}`]] : []),
        ]);
      };
      // Where there is no room for their names, they are in the legend.
      const named = width > 600 && chart.marks.length < width / 110;
      const roles = [], series = [];
      shown.forEach((line, index) => {
        const common = { name: line.name, yAxisIndex: line.right && chart.right ? 1 : 0, itemStyle: { color: line.colour }, emphasis: { disabled: true }, clip: true };
        roles.push({ line, measured: false }, { line, measured: true });
        series.push(
          { ...common, type: 'line', data: line.predicted, symbol: 'circle', symbolSize: 5, showSymbol: true, lineStyle: { color: line.colour, width: 2, type: line.right ? 'dashed' : 'solid' }, ...(line.predicted.length > 40 ? { showSymbol: false } : {}), ...(index === 0 ? { markLine: vertical(chart.marks.map((mark) => ({ ...mark, show: named })), () => css('soft')) } : {}) },
          { ...common, type: 'scatter', data: line.measured, symbol: line.right ? 'diamond' : 'circle', symbolSize: 11, itemStyle: { color: css('ground'), borderColor: line.colour, borderWidth: 2.5 }, ...(ranges(line).length ? { markLine: whiskers(ranges(line), line.colour, false) } : {}) });
      });
      for (const line of shown) series.push(...unseen(ranges(line).flat(), { yAxisIndex: line.right && chart.right ? 1 : 0 }));
      const right = chart.right ? [axis(chart.right, of(true), { horizontal: false, position: 'right', splitLine: { show: false } })] : [];
      return {
        height: 380,
        legend: [...lines.map((line) => [line.name + (line.right && chart.right ? ' (right)' : ''), line.colour, line.name, line.right]),
          ...(named ? [] : [...new Set(chart.marks.map((mark) => mark.name))].map((name) => [name, css('soft'), false, true]))],
        option: {
          grid: grid(width, chart.right ? { right: 76 } : {}), tooltip: tooltip('item', hint),
          xAxis: axis(chart.x, ends, { horizontal: true, width }), yAxis: [axis(chart.left, of(false), { horizontal: false }), ...right], series,
        },
      };
    },

    scatter(chart, { width, hidden }) {
      const tone = tones();
      const fits = (point) => point.x !== null && point.y !== null && (!chart.x.log || point.x > 0) && (!chart.y.log || point.y > 0);
      const series = chart.series.map((one) => ({ ...one, colour: tone(one.emphasised ? 'emphasis' : 'next'), points: one.points.filter(fits) }));
      const shown = series.filter(({ name }) => !hidden.has(name));
      const points = series.flatMap(({ points }) => points), visible = shown.flatMap(({ points }) => points);
      const beats = (one, other) => one.x <= other.x && one.y <= other.y && (one.x < other.x || one.y < other.y);
      const best = new Set(visible.filter((point) => !visible.some((other) => beats(other, point))));
      const front = chart.front ? [{
        type: 'line', silent: true, symbol: 'none', z: 1, lineStyle: { color: css('front'), width: 6 }, emphasis: { disabled: true },
        data: [...best].sort((one, other) => one.x - other.x).map(({ x, y }) => [x, y]),
      }] : [];
      const hint = ({ data }) => data?.one && tip(data.one.label, [
        [null, chart.x.name, UNITS[chart.x.unit].exact(data.one.x)], [null, chart.y.name, UNITS[chart.y.unit].exact(data.one.y)],
      ], ...(chart.front && best.has(data.one) ? ['nobody else is better in both'] : []));
      return {
        height: Math.min(Math.max(width * 0.6, 360), 560),
        legend: [...series.map(({ name, colour }) => [name, colour, true]), ...(chart.front ? [['nobody is better in both', css('front'), false, true]] : [])],
        option: {
          grid: grid(width), tooltip: tooltip('item', hint),
          xAxis: axis(chart.x, points.map(({ x }) => x), { horizontal: true, width }),
          yAxis: axis(chart.y, points.map(({ y }) => y), { horizontal: false }),
          series: [...front, ...shown.map(({ name, colour, emphasised, points }) => ({
            type: 'line', name, symbol: 'circle', symbolSize: emphasised ? 10 : 7, z: emphasised ? 4 : 3, itemStyle: { color: colour },
            lineStyle: { color: colour, width: emphasised ? 2 : 1, opacity: 0.6 }, emphasis: { disabled: true },
            data: points.map((one) => ({ value: [one.x, one.y], one })),
            label: { show: true, position: 'right', color: colour, fontSize: 11, fontWeight: emphasised ? 'bold' : 'normal', formatter: ({ data }) => data.one.label },
            labelLayout: { hideOverlap: true },
          }))],
        },
      };
    },
  };

  // ---- Drawing -----------------------------------------------------------------------------------------------------

  const legend = (place, entries, state) => {
    place.replaceChildren(...entries.map(([name, colour, key, line]) => {
      if (!key) return element('span', {}, swatch(colour, line), name);
      const id = key === true ? name : key;
      const button = element('button', { type: 'button' }, swatch(colour, line), name);
      button.setAttribute('aria-pressed', String(!state.hidden.has(id)));
      button.addEventListener('click', () => {
        if (!state.hidden.delete(id)) state.hidden.add(id);
        const at = [...place.children].indexOf(button);
        draw(state);
        place.children[at].focus();
      });
      return button;
    }));
  };
  const draw = (state) => {
    const width = state.place.clientWidth || 600;
    const made = KINDS[state.chart.kind](state.chart, { width, hidden: state.hidden });
    legend(state.legend, made.legend, state);
    state.place.style.height = `${Math.round(made.height)}px`;
    state.echarts ??= echarts.init(state.place, null, { renderer: 'svg', locale: 'EN', useDirtyRect: false });
    state.echarts.resize();
    state.echarts.setOption({ animation: false, useUTC: true, textStyle: { fontFamily: getComputedStyle(document.body).fontFamily }, ...made.option }, { notMerge: true });
    state.width = width;
  };
  const redraw = (force) => drawn.filter((state) => force || state.width !== state.place.clientWidth).forEach(draw);

  let failed = 0;
  for (const figure of document.querySelectorAll('figure[data-chart]')) {
    const state = {
      chart: charts[Number(figure.dataset.chart)], place: figure.querySelector('.chart'), legend: figure.querySelector('.legend'), hidden: new Set(),
    };
    drawn.push(state);
  }

  // ---- Light and dark ----------------------------------------------------------------------------------------------

  const preference = matchMedia('(prefers-color-scheme: dark)'), paper = matchMedia('print');
  let chosen = null;
  const apply = () => {
    const theme = paper.matches ? 'light' : chosen ?? (preference.matches ? 'dark' : 'light');
    const changed = root.dataset.theme !== theme;
    root.dataset.theme = theme;
    button.textContent = theme === 'dark' ? '\u2600 light' : '\u263e dark';
    return changed;
  };
  const button = document.getElementById('theme');
  button.hidden = false;
  button.addEventListener('click', () => {
    chosen = root.dataset.theme === 'dark' ? 'light' : 'dark';
    apply();
    redraw(true);
  });
  preference.addEventListener('change', () => apply() && redraw(true));
  paper.addEventListener('change', () => redraw(apply()));
  apply();

  for (const state of drawn) {
    try {
      draw(state);
    } catch (error) {
      failed++;
      console.error(`chart "${state.chart.title}":`, error);
      state.place.textContent = 'This chart could not be drawn; the tables have its figures.';
    }
  }
  let waiting;
  addEventListener('resize', () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => redraw(false), 100);
  });

  // ---- Tables ------------------------------------------------------------------------------------------------------

  for (const table of document.querySelectorAll('table.sortable')) {
    const headings = [...table.tHead.rows[0].cells], bodies = [...table.tBodies];
    for (const body of bodies) {
      const parts = [...body.rows].slice(1);
      const first = body.rows[0]?.cells[0];
      if (!first) continue;
      const any = table.querySelector('tr.part');
      if (!parts.length) {
        if (any) first.prepend(element('span', { style: 'display:inline-block;width:1.2rem' }));
        continue;
      }
      const more = element('button', { type: 'button', className: 'more' });
      const show = (open) => {
        parts.forEach((row) => { row.hidden = !open; });
        more.textContent = open ? '\u25be' : '\u25b8';
        more.setAttribute('aria-expanded', String(open));
        more.setAttribute('aria-label', `${open ? 'hide' : 'show'} the parts of ${first.textContent.slice(0, 80)}`);
      };
      more.addEventListener('click', () => show(more.getAttribute('aria-expanded') !== 'true'));
      show(false);
      first.prepend(more);
    }
    if (bodies.length < 2) continue;
    const value = (body, column) => {
      const cell = body.rows[0].cells[column];
      if (!cell) return null;
      return 'v' in cell.dataset ? Number(cell.dataset.v) : cell.classList.contains('n') ? null : cell.textContent;
    };
    const compare = (one, other) => typeof one === 'number' && typeof other === 'number' ? one - other
      : String(one).localeCompare(String(other), 'en', { numeric: true });
    headings.forEach((heading, column) => {
      if (!heading.textContent) return;
      const sort = element('button', { type: 'button' }, heading.textContent);
      sort.addEventListener('click', () => {
        const numeric = heading.classList.contains('n');
        const now = heading.getAttribute('aria-sort');
        const down = now ? now === 'ascending' : numeric;
        headings.forEach((other) => other.removeAttribute('aria-sort'));
        heading.setAttribute('aria-sort', down ? 'descending' : 'ascending');
        const keyed = bodies.map((body, index) => ({ body, index, key: value(body, column), rest: body.classList.contains('rest') }));
        keyed.sort((one, other) => one.rest - other.rest || (one.key === null) - (other.key === null)
          || (down ? -1 : 1) * compare(one.key, other.key) || one.index - other.index);
        table.append(...keyed.map(({ body }) => body));
      });
      heading.replaceChildren(sort);
    });
  }

  document.body.dataset.rendered = String(drawn.length - failed);
})();
