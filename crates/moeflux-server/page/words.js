// Writes numbers as people read them: durations, counts, rates and sizes.
//
// Pure functions without a clock; all text is plain and in English.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(n) {
  return grouped.format(n);
}

/** "1 token", "2 tokens". */
export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function duration(seconds) {
  if (seconds < 0.95) return `${Math.max(seconds, 0.01).toFixed(seconds < 0.1 ? 2 : 1)} s`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (seconds < 600) {
    const whole = Math.round(seconds);
    return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  }
  if (minutes < 60) return `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A time that computing took, in milliseconds if it is less than a second. */
export function shortTime(seconds) {
  const ms = seconds * 1000;
  if (ms >= 999.5) return `${seconds.toFixed(seconds < 9.95 ? 1 : 0)} s`;
  const nDigits = [99.95, 0.995, 0.00995].findIndex((least) => ms >= least);
  return `${ms.toFixed(nDigits < 0 ? 3 : nDigits)} ms`;
}

/** A time that is still to come, without false precision. */
export function about(seconds) {
  if (seconds < 1) return "about 1 s";
  if (seconds < 10) return `about ${Math.ceil(seconds)} s`;
  if (seconds < 55) return `about ${Math.ceil(seconds / 5) * 5} s`;
  if (seconds < 3300) return `about ${Math.ceil(seconds / 60)} min`;
  return `about ${(seconds / 3600).toFixed(1)} h`;
}

export function rate(n, seconds) {
  if (!(seconds > 0) || n < 2) return "";
  const perSecond = n / seconds;
  return `${perSecond < 10 ? perSecond.toFixed(1) : count(perSecond)} tokens/s`;
}

export function size(nBytes) {
  if (nBytes < 1000) return plural(nBytes, "byte");
  if (nBytes < 1e6) return `${(nBytes / 1e3).toFixed(nBytes < 1e4 ? 1 : 0)} kB`;
  if (nBytes < 999.95e6) return `${(nBytes / 1e6).toFixed(1)} MB`;
  return `${(nBytes / 1e9).toFixed(nBytes < 99.95e9 ? 1 : 0)} GB`;
}

/** Two sizes in the unit of the second: "3.1 of 17.2 GB", "120–450 MB". */
export function sizes(first, second, joint) {
  const units = [["kB", 1e3], ["MB", 1e6], ["GB", 1e9]];
  const [unit, nBytes] = units.findLast(([, least]) => second >= least * 0.99995) ?? units[0];
  const digits = second >= 99.95 * nBytes ? 0 : 1;
  const [low, high] = [first, second].map((it) => (it / nBytes).toFixed(digits));
  return `${low}${joint}${high} ${unit}`;
}

/** Numbers that change while one looks at them; what is not known is a dash. */
export function tokenRate(perSecond) {
  if (perSecond === null) return "–";
  return `${perSecond < 99.95 ? perSecond.toFixed(1) : count(perSecond)} tokens/s`;
}

export function byteRate(perSecond) {
  return perSecond === null ? "–" : `${size(Math.round(perSecond))}/s`;
}

/** Only all of it is 100 %, and only nothing is 0 %. */
export function percent(share) {
  if (share === null) return "–";
  const rounded = Math.round(share * 100);
  if (rounded === 0 && share > 0) return "under 1 %";
  if (rounded === 100 && share < 1) return "over 99 %";
  return `${rounded} %`;
}

/** A message of the server as a sentence: names of fields keep their case. */
export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** The heading of the list under which a time belongs. */
export function dayGroup(timeMs, nowMs) {
  const midnight = new Date(nowMs).setHours(0, 0, 0, 0);
  const day = 86_400_000;
  if (timeMs >= midnight) return "Today";
  if (timeMs >= midnight - day) return "Yesterday";
  if (timeMs >= midnight - 7 * day) return "Previous 7 days";
  if (timeMs >= midnight - 30 * day) return "Previous 30 days";
  return "Older";
}
