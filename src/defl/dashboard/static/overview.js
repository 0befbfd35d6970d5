// The overview page: health, whose update counted, what goes on now.

import { element } from "./dom.js";
import { load } from "./fetching.js";
import { healthPanel } from "./health.js";

const DENSE_FROM = 31; // members; more rows of squares are no picture any more

export function mount(root, context) {
  const columns = element("div", { class: "columns" });
  root.append(columns);
  const health = healthPanel(columns);
  let panels = null; // { module, place, part }, once it is known which

  const panel = (module, span = "", isShown = () => true) => {
    const place = element("div", { class: span });
    columns.append(place);
    return { module, place, isShown, part: null };
  };
  const choose = ({ members, whole }) => [
    panel(members.length < DENSE_FROM ? "strip" : "dense"),
    ...(whole
      ? [panel("nodes"), panel("happened")]
      : [
          panel("open_round", "span-8", (overview) => overview.open_round !== null),
          panel("happened", "span-8", (overview) => overview.open_round === null),
          panel("this_node", "span-4"),
        ]),
  ];

  // All panels get their turn; one whose module did not arrive is tried again next time.
  async function updatePanel(one, overview, rounds) {
    one.place.hidden = !one.isShown(overview);
    if (one.place.hidden) return;
    if (one.part === null) {
      const { mount: mountPanel } = await load(one.module);
      one.part ??= mountPanel(one.place, context);
    }
    await one.part.update(overview, rounds);
  }

  return {
    async update(overview, rounds) {
      health.update(overview.health, overview.members);
      panels ??= choose(overview);
      const results = await Promise.allSettled(panels.map((one) => updatePanel(one, overview, rounds)));
      const failed = results.find((result) => result.status === "rejected");
      if (failed) throw failed.reason;
    },
    unmount() {
      for (const { part } of panels ?? []) part?.unmount();
    },
  };
}
