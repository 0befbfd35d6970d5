// Numbers and times as text. Null and undefined are an em dash: not known, or it does not apply.

export const NONE = "—";

const known = (write) => (value, ...rest) =>
  value === null || value === undefined || Number.isNaN(value) ? NONE : write(value, ...rest);

// Thousands apart and a true minus sign: tabular figures line up.
const decimal = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })
    .replace("-", "−");

export const count = known((value) => decimal(value, 0));
export const fixed = known(decimal);

// How long, roughly: "0.5 s", "39 s", "12 min", "3 h".
export const seconds = known((value) => {
  if (value < 10) return `${decimal(value, Number.isInteger(value) ? 0 : 1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172_800) return `${Math.round(value / 3600)} h`;
  return `${count(value / 86_400)} days`;
});

// How long, to the tenth: "38.9 s", "12 min 5 s", "3 h 20 min".
export const exactSeconds = known((value) => {
  if (value < 119.95) return `${decimal(value, 1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return pair(Math.floor(whole / 60), "min", whole % 60, "s");
  return pair(Math.floor(whole / 3600), "h", Math.floor(whole / 60) % 60, "min");
});

const pair = (large, unit, small, smaller) =>
  small ? `${count(large)} ${unit} ${small} ${smaller}` : `${count(large)} ${unit}`;

export const milliseconds = known((value) => `${decimal(value, 0)} ms`);

export const bytes = known((value) => {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${decimal(value, unit === 0 || value >= 99.95 ? 0 : 1)} ${units[unit]}`;
});

export const percent = known((share) => `${decimal(100 * share, 1)} %`);

// Metrics that are shares by their name and value are written in per cent.
const SHARE = /accuracy|precision|recall|f1|auc|iou|dice|share|rate$/i;

export const isShare = (name) => SHARE.test(name);

export function metric(name, value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (isShare(name) && value >= 0 && value <= 1) return percent(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2).replace("-", "−");
  return decimal(value, size >= 100 ? 1 : size >= 1 ? 2 : 3);
}

// The viewer's time of day of seconds since 1970: "11:52:07".
export const clock = known((at) => new Date(at * 1000).toLocaleTimeString("en-GB"));

// With the date if it is not today's: "2026-11-16 11:52:07".
export const moment = known((at) => {
  const day = new Date(at * 1000);
  if (day.toDateString() === new Date().toDateString()) return clock(at);
  return `${day.toLocaleDateString("sv-SE")} ${clock(at)}`;
});

// The first characters of a digest.
export const digest = known((hex, length = 8) => hex.slice(0, length));
