// The page is whole without this: it adds the theme's switch, the filters, and what
// hovering shows. Nothing here loads anything.
(() => {
  "use strict";
  const root = document.documentElement;
  const tip = document.getElementById("tip");
  root.classList.remove("no-script");

  // Themes: the system's, unless the reader has chosen.
  const button = document.getElementById("theme");
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
  name();

  // Methods: a class on the root hides all that belongs to one.
  for (const box of document.querySelectorAll(".filters input")) {
    const apply = () => root.classList.toggle(`hide-${box.value}`, !box.checked);
    box.addEventListener("change", apply);
    apply();
  }

  // Rows: those of all tables that have every word in their first two cells.
  const field = document.getElementById("rows");
  const rows = field ? [...document.querySelectorAll("main tbody tr")] : [];
  const named = (row) => [...row.cells].slice(0, 2).map((cell) => cell.textContent).join(" ").toLowerCase();
  field?.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.hidden = !words.every((word) => named(row).includes(word));
    const shown = rows.filter((row) => !row.hidden).length;
    document.getElementById("found").textContent = words.length ? `${shown} of ${rows.length} rows` : "";
  });

  // Hovering: a mark's text, or the values of all shown lines at the nearest place.
  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const right = event.clientX + 14 + width > innerWidth;
    const below = event.clientY - height - 10 > 0;
    tip.style.left = `${Math.max(4, right ? event.clientX - width - 14 : event.clientX + 14)}px`;
    tip.style.top = `${below ? event.clientY - height - 10 : event.clientY + 16}px`;
  };
  const hide = () => {
    tip.hidden = true;
    for (const line of document.querySelectorAll(".cross")) line.remove();
  };
  const nearest = (points, x) =>
    points.reduce((best, p) => (Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best));
  const values = (svg, event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const shown = svg.hover.filter((s) => s.points.length && !root.classList.contains(`hide-${s.index}`));
    if (!shown.length) return;
    const found = shown.map((s) => [s.label, nearest(s.points, at.x)]);
    const place = nearest(found.map((f) => f[1]), at.x);
    const lines = found.filter((f) => Math.abs(f[1][0] - place[0]) < 6).map((f) => `${f[0]}: ${f[1][3]}`);
    hide();
    const cross = document.createElementNS(svg.namespaceURI, "line");
    const area = svg.querySelector("clipPath rect");
    const [top, tall] = ["y", "height"].map((key) => Number(area.getAttribute(key)));
    const ends = { x1: place[0], x2: place[0], y1: top, y2: top + tall, class: "cross" };
    for (const key in ends) cross.setAttribute(key, ends[key]);
    svg.append(cross);
    show(`${place[2]}\n${lines.join("\n")}`, event);
  };
  for (const svg of document.querySelectorAll("svg.figure")) {
    if (svg.dataset.hover) svg.hover = JSON.parse(svg.dataset.hover);
    const title = svg.querySelector(":scope > title"); // else browsers show it over everything
    if (title) {
      svg.setAttribute("aria-label", title.textContent);
      svg.setAttribute("aria-describedby", svg.querySelector(":scope > desc").id);
      svg.removeAttribute("aria-labelledby");
      title.remove();
    }
  }
  const move = (event) => {
    const mark = event.target.closest("[data-tip]");
    const svg = event.target.closest("svg.figure");
    if (mark) { hide(); show(mark.dataset.tip, event); }
    else if (svg && svg.hover) values(svg, event);
    else hide();
  };
  document.addEventListener("pointermove", move);
  document.addEventListener("pointerdown", move);
  document.addEventListener("scroll", hide, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
