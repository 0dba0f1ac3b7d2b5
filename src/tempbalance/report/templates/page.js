"use strict";
{
  const views = new Map();

  const wrap = (lines, width) => {
    const found = [""];
    for (const word of [lines].flat().join(" ").split(" ")) {
      const last = found[found.length - 1];
      if (last && last.length + word.length >= width) found.push(word);
      else found[found.length - 1] = last ? `${last} ${word}` : word;
    }
    return found;
  };

  // On a phone titles wrap, and labels of bars are slanted in one line.
  const narrowed = (node, width) => {
    if (node === null || typeof node !== "object") return;
    if (node.labelAngle === 0 && node.labelExpr?.includes("label_names")) {
      Object.assign(node, { labelAngle: -38, labelExpr: "label_names[datum.value]" });
    }
    for (const name of ["text", "subtitle"]) {
      if (node.title && Array.isArray(node.title[name])) node.title[name] = wrap(node.title[name], name === "text" ? 0.7 * width : width);
    }
    for (const [name, each] of Object.entries(node)) if (name !== "datasets") narrowed(each, width);
  };

  // Facets and concatenations do not follow their box by themselves.
  const fitted = (spec, room) => {
    for (const child of spec.vconcat ?? []) child.width = Math.max(200, room - 90);
    if (spec.facet) {
      if (room < 640) spec.columns = 1;
      spec.spec.width = Math.max(160, Math.floor((room - 150) / spec.columns));
    }
    if (spec.concat && room < 640) {
      spec.columns = 1;
      for (const child of spec.concat) child.width = Math.min(child.width, Math.max(200, room - 90));
    }
    if (room < 640) {
      spec.config.legend.columns = 1;
      narrowed(spec, Math.floor(room / 7));
    }
    spec.config.title.limit = room - 16;
    return spec;
  };

  const draw = async (name, spec) => {
    const box = document.getElementById(`chart-${name}`);
    const inputs = document.getElementById(`inputs-${name}`);
    // ast: expressions are interpreted, not compiled, which the policy forbids; logLevel 1: errors, not layers without data
    const options = { ast: true, actions: false, renderer: "svg", defaultStyle: false, bind: inputs, logLevel: 1 };
    try {
      const { view } = await vegaEmbed(box, fitted(spec, box.clientWidth), options);
      views.set(name, view);
      view.addEventListener("click", (_, item) => choose(item?.datum?.spectrum));
      if (name === "spectrum" && document.querySelector("[data-evidence]")) view.addSignalListener("spectrum", explain);
    } catch (error) {
      box.textContent = `This chart could not be drawn: ${error.message}`;
      throw error;
    }
  };

  // A number means a layer of the list; the chart of its spectrum follows.
  const choose = (number) => {
    const view = views.get("spectrum");
    if (!view || !Number.isInteger(number) || number < 0 || !document.querySelector("[data-spectrum]")) return;
    view.signal("spectrum", number).runAsync();
    document.getElementById("chart-spectrum").closest("figure").scrollIntoView({ block: "nearest" });
  };

  const explain = (_, number) => {
    for (const each of document.querySelectorAll("[data-evidence]")) each.hidden = Number(each.dataset.evidence) !== number;
  };

  const value = (body, column) => body.rows[0].cells[column].textContent.trim();

  const compare = (first, second) => {
    const [a, b] = [Number(first), Number(second)];
    return Number.isNaN(a) || Number.isNaN(b) ? first.localeCompare(second, undefined, { numeric: true }) : a - b;
  };

  // What is empty stays at the end in both directions.
  const sort = (head) => {
    const table = head.closest("table");
    const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const each of table.tHead.rows[0].cells) each.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const keyed = Array.from(table.tBodies, (body) => [value(body, head.cellIndex), body]);
    keyed.sort(([a], [b]) => (a === "" || b === "" ? (a === "") - (b === "") : direction * compare(a, b)));
    table.append(...keyed.map(([, body]) => body));
  };

  document.addEventListener("click", ({ target }) => {
    const head = target.closest("thead th");
    const choice = target.closest("[data-spectrum]");
    if (head) sort(head);
    if (choice) choose(Number(choice.dataset.spectrum));
  });

  for (const name of ["parts", "more"]) {
    document.getElementById(name)?.addEventListener("change", ({ target }) => {
      document.querySelector("table").classList.toggle(`with-${name}`, target.checked);
    });
  }

  const specs = Object.entries(JSON.parse(document.getElementById("charts").textContent));
  Promise.allSettled(specs.map(([name, spec]) => draw(name, spec))).then((ends) => {
    document.documentElement.dataset.drawn = ends.every((end) => end.status === "fulfilled") ? "all" : "not all";
  });
}
