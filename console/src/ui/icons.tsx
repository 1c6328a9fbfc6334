/** Line icons, 18 by 18; they mean nothing to a screen reader. */

const PATHS = {
  pipelines: "M3 6h5l4 6h9M3 18h5l4-6M17 8l4 4-4 4",
  connections: "M9 7V3M15 7V3M7 7h10v4a5 5 0 0 1-10 0zM12 16v5",
  functions: "M8 20c3 0 3-3 3.5-7S13 4 16 4M8 11h7",
  state: "M4 6c0-1.7 3.6-3 8-3s8 1.3 8 3-3.6 3-8 3-8-1.3-8-3zM4 6v12c0 1.7 3.6 3 8 3s8-1.3 8-3V6M4 12c0 1.7 3.6 3 8 3s8-1.3 8-3",
  cluster: "M4 4h16v6H4zM4 14h16v6H4zM8 7h.01M8 17h.01",
  sun: "M12 17a5 5 0 1 0 0-10 5 5 0 0 0 0 10zM12 1v2M12 21v2M4.2 4.2l1.4 1.4M18.4 18.4l1.4 1.4M1 12h2M21 12h2M4.2 19.8l1.4-1.4M18.4 5.6l1.4-1.4",
  moon: "M21 12.8A9 9 0 1 1 11.2 3a7 7 0 0 0 9.8 9.8z",
  leave: "M9 21H5a2 2 0 0 1-2-2V5a2 2 0 0 1 2-2h4M16 17l5-5-5-5M21 12H9",
  plus: "M12 5v14M5 12h14",
  play: "M7 4l13 8-13 8z",
  stop: "M6 6h12v12H6z",
  restart: "M3 12a9 9 0 1 0 3-6.7L3 8M3 3v5h5",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM20 20l-4-4",
  check: "M4 12l5 5L20 6",
  cross: "M6 6l12 12M18 6L6 18",
  warning: "M12 3l10 18H2zM12 10v5M12 18h.01",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  left: "M15 5l-7 7 7 7",
  down: "M5 9l7 7 7-7",
  table: "M3 5h18v14H3zM3 10h18M9 10v9",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 17 }: { name: IconName; size?: number }) {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 24 24"
      fill="none"
      stroke="currentColor"
      strokeWidth={name === "more" ? 3 : 1.9}
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      focusable="false"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Logo() {
  return (
    <svg width="26" height="26" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="8" fill="#0b6e78" />
      <path
        d="M6 11c3.3-3.4 6.7-3.4 10 0s6.7 3.4 10 0M6 18c3.3-3.4 6.7-3.4 10 0s6.7 3.4 10 0M6 25c3.3-3.4 6.7-3.4 10 0s6.7 3.4 10 0"
        fill="none"
        stroke="#fff"
        strokeWidth="2.6"
        strokeLinecap="round"
      />
    </svg>
  );
}
