import { useId, type ReactNode } from "react";
import { ApiError } from "../api/client";
import type { JobState } from "../api/types";
import { toneOf, wordOf } from "../lib/states";
import { Icon, type IconName } from "./icons";

export interface ButtonProps {
  children?: ReactNode;
  icon?: IconName;
  /** What a button without text does. */
  label?: string;
  kind?: "primary" | "danger" | "plain";
  small?: boolean;
  disabled?: boolean;
  type?: "button" | "submit";
  title?: string;
  onClick?: () => void;
}

export function Button({ children, icon, label, kind, small, disabled, type = "button", title, onClick }: ButtonProps) {
  const looks = ["button", kind, small && "small", !children && "icon"].filter(Boolean).join(" ");
  return (
    <button type={type} className={looks} disabled={disabled} aria-label={label} title={title ?? label} onClick={onClick}>
      {icon && <Icon name={icon} size={small ? 15 : 16} />}
      {children}
    </button>
  );
}

export function StateBadge({ state }: { state: JobState }) {
  return <span className={`badge ${toneOf(state)}`}>{wordOf(state)}</span>;
}

export function Tag({ children }: { children: ReactNode }) {
  return <span className="badge plain">{children}</span>;
}

export function Loading({ what = "Loading" }: { what?: string }) {
  return (
    <div className="loading" role="status">
      <span className="spinner" aria-hidden="true" />
      {what}…
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export function ErrorNotice({ error, retry }: { error: unknown; retry?: () => void }) {
  if (error instanceof ApiError && error.status === 401) return null;
  return (
    <div className="notice bad" role="alert">
      <Icon name="warning" />
      <pre className="grow">{messageOf(error)}</pre>
      {retry && (
        <Button small onClick={retry}>
          Try again
        </Button>
      )}
    </div>
  );
}

export interface FieldProps {
  label: string;
  help?: ReactNode;
  required?: boolean;
  children: (id: string, describedBy: string | undefined) => ReactNode;
}

/** A label, what is edited, and a sentence of help, tied together for screen readers. */
export function Field({ label, help, required, children }: FieldProps) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>
        {label}
        {required && <span className="muted"> (required)</span>}
      </label>
      {children(id, help ? `${id}-help` : undefined)}
      {help && (
        <span id={`${id}-help`} className="help">
          {help}
        </span>
      )}
    </div>
  );
}

export interface SearchProps {
  value: string;
  onChange: (value: string) => void;
  label: string;
}

export function Search({ value, onChange, label }: SearchProps) {
  return (
    <div className="search">
      <Icon name="search" size={16} />
      <input
        className="input"
        type="search"
        aria-label={label}
        placeholder={label}
        value={value}
        onChange={(event) => onChange(event.target.value)}
      />
    </div>
  );
}

export interface Fact {
  name: string;
  value: ReactNode;
}

export function Facts({ facts }: { facts: (Fact | false | null | undefined)[] }) {
  return (
    <dl className="facts">
      {facts
        .filter((fact) => !!fact)
        .map(({ name, value }) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}
