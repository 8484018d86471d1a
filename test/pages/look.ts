// @ts-nocheck: it runs in the browser, whose names the compiler is not told here.
/** What there is on a page, and whether it is where one can see it. */
export function look() {
  const box = (element) => element.getBoundingClientRect();
  const isIn = (inner, outer) =>
    inner.left >= outer.left - 1 &&
    inner.right <= outer.right + 1 &&
    inner.top >= outer.top - 1 &&
    inner.bottom <= outer.bottom + 1;
  const meets = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const charts = [...document.querySelectorAll('svg')].map((svg) => {
    const texts = [...svg.querySelectorAll('text')].filter(({ textContent }) => textContent !== '');
    const lines = [...svg.querySelectorAll('polyline')];
    svg.scrollIntoView();
    return {
      title: svg.getAttribute('aria-label'),
      area: box(svg).width * box(svg).height,
      // The length along which each line is drawn, and its colour.
      lines: lines.map((line) => ({
        name: line.querySelector('title').textContent,
        length: line.getTotalLength(),
        colour: getComputedStyle(line).stroke,
      })),
      // At the place of a point that is hidden, or outside, the browser finds something else.
      hiddenPoints: [...svg.querySelectorAll('circle')].filter((circle) => {
        const { left, top, width, height } = box(circle);
        return document.elementFromPoint(left + width / 2, top + height / 2)?.closest('circle, polyline') == null;
      }).length,
      outside: [...texts, ...lines].filter((element) => !isIn(box(element), box(svg))).map(String),
      overlapping: texts.flatMap((a, i) =>
        texts
          .slice(i + 1)
          .filter((b) => meets(box(a), box(b)))
          .map((b) => `${a.textContent} / ${b.textContent}`),
      ),
    };
  });
  const rows = [...document.querySelectorAll('table')].map((table) =>
    [...table.rows].map((row) => [...row.cells].map(({ textContent }) => textContent)),
  );
  return {
    title: document.title,
    heading: document.querySelector('h1').textContent,
    paragraphs: [...document.querySelectorAll('p')].map(({ textContent }) => textContent),
    charts,
    rows,
    cutTables: [...document.querySelectorAll('div')].filter((div) => div.scrollWidth > div.clientWidth).length,
    isTooWide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    mode: document.compatMode,
  };
}
