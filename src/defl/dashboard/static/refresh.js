// Changes a part of the page only if what it shows has changed: focus, selection and scroll stay.

const shown = new WeakMap();

// `key`: everything that `build` reads; `build` returns a child or a list of them; null is none.
export function refresh(node, key, build) {
  const text = JSON.stringify(key);
  if (shown.get(node) === text) return;
  shown.set(node, text);
  node.replaceChildren(...[build()].flat().filter((child) => child !== null));
}

// One element per item in `parent`, in the items' order; `make` makes an element, `fill` fills it.
export function refreshList(parent, items, make, fill) {
  while (parent.children.length > items.length) parent.lastChild.remove();
  while (parent.children.length < items.length) parent.append(make());
  items.forEach((item, place) => fill(parent.children[place], item, place));
}
