import { useSyncExternalStore } from "react";

export type Theme = "light" | "dark";

const KEY = "headrace-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

function stored(): Theme | null {
  const value = localStorage.getItem(KEY);
  return value === "light" || value === "dark" ? value : null;
}

export function currentTheme(): Theme {
  return stored() ?? (system.matches ? "dark" : "light");
}

export function applyTheme(): void {
  document.documentElement.dataset["theme"] = currentTheme();
  listeners.forEach((listener) => listener());
}

export function toggleTheme(): void {
  localStorage.setItem(KEY, currentTheme() === "dark" ? "light" : "dark");
  applyTheme();
}

system.addEventListener("change", applyTheme);

export function useTheme(): Theme {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    currentTheme,
  );
}
