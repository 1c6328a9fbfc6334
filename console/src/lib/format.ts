/** Numbers, sizes, durations and times as people read them. */

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const SUFFIXES = ["", "k", "M", "G", "T"] as const;

/** 1234567 → "1.2M". */
export function formatCount(value: number): string {
  let scaled = value;
  let step = 0;
  while (Math.abs(scaled) >= 999.5 && step < SUFFIXES.length - 1) {
    scaled /= 1000;
    step += 1;
  }
  const digits = Math.abs(scaled) >= 100 || (step === 0 && Number.isInteger(scaled)) ? 0 : 1;
  return scaled.toFixed(digits).replace(/\.0$/, "") + (SUFFIXES[step] ?? "");
}

/** 1234.5 → "1,234.5". */
export function formatExact(value: number): string {
  return number.format(value);
}

/** 1536 → "1.5 KiB". */
export function formatBytes(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let scaled = bytes;
  let step = 0;
  while (scaled >= 1024 && step < units.length - 1) {
    scaled /= 1024;
    step += 1;
  }
  return `${step === 0 ? Math.round(scaled) : scaled.toFixed(scaled < 10 ? 1 : 0)} ${units[step] ?? "B"}`;
}

/** 93 → "1m 33s"; 0.12 → "120 ms". */
export function formatSeconds(seconds: number): string {
  if (seconds < 0) return `-${formatSeconds(-seconds)}`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const parts: [number, string][] = [
    [Math.floor(whole / 86_400), "d"],
    [Math.floor(whole / 3600) % 24, "h"],
    [Math.floor(whole / 60) % 60, "m"],
    [whole % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  return parts
    .slice(first, first + 2)
    .filter(([value]) => value > 0)
    .map(([value, unit]) => `${value}${unit}`)
    .join(" ");
}

const dayAndTime = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
});

/** An instant of the server, in microseconds. */
export function formatTime(micros: number): string {
  return dayAndTime.format(new Date(micros / 1000));
}

export function formatClock(micros: number): string {
  return new Date(micros / 1000).toLocaleTimeString("en-GB");
}

/** How long ago an instant of the server was. */
export function formatAge(micros: number, now: number = Date.now()): string {
  const seconds = Math.max(0, (now - micros / 1000) / 1000);
  return seconds < 5 ? "just now" : `${formatSeconds(Math.round(seconds)).split(" ").slice(0, seconds < 60 ? 2 : 1).join(" ")} ago`;
}

/** "1 row", "2 rows". */
export function plural(count: number, noun: string): string {
  return `${formatExact(count)} ${noun}${count === 1 ? "" : "s"}`;
}
