import { useEffect, useRef, useState, type KeyboardEvent } from "react";
import { Button, type ButtonProps } from "./parts";

export interface MenuItem {
  label: string;
  help?: string;
  danger?: boolean;
  onSelect: () => void;
}

interface MenuProps {
  button: Omit<ButtonProps, "onClick">;
  items: readonly (MenuItem | false)[];
}

/** A button with a menu: arrows move, Escape closes, focus returns to the button. */
export function Menu({ button, items }: MenuProps) {
  const [open, setOpen] = useState(false);
  const anchor = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!open) return;
    anchor.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    const outside = (event: PointerEvent) => {
      if (!anchor.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", outside);
    return () => document.removeEventListener("pointerdown", outside);
  }, [open]);
  const close = () => {
    setOpen(false);
    anchor.current?.querySelector<HTMLElement>("button")?.focus();
  };
  const move = (event: KeyboardEvent) => {
    if (event.key === "Escape") close();
    if (event.key === "Tab") setOpen(false);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...(anchor.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
    all.at((all.indexOf(document.activeElement as HTMLElement) + step) % all.length)?.focus();
  };
  return (
    <div className="menu-anchor" ref={anchor}>
      <Button {...button} onClick={() => setOpen(!open)} />
      {open && (
        <div className="menu" role="menu" aria-label={button.label ?? "Actions"} tabIndex={-1} onKeyDown={move}>
          {items
            .filter((item) => item !== false)
            .map((item) => (
              <button
                key={item.label}
                type="button"
                role="menuitem"
                tabIndex={-1}
                className={item.danger ? "danger" : ""}
                onClick={() => {
                  close();
                  item.onSelect();
                }}
              >
                {item.label}
                {item.help && <small>{item.help}</small>}
              </button>
            ))}
        </div>
      )}
    </div>
  );
}
