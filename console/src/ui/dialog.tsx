import { useEffect, useId, useRef, useState, type ReactNode, type SubmitEvent } from "react";
import { Button, ErrorNotice } from "./parts";

interface DialogProps {
  title: string;
  children?: ReactNode;
  confirm: string;
  danger?: boolean;
  disabled?: boolean;
  /** Closes the dialog unless it fails; then its message is shown. */
  onConfirm: () => Promise<unknown>;
  onClose: () => void;
}

/** A modal question; the browser keeps the focus inside and closes it on Escape. */
export function Dialog({ title, children, confirm, danger, disabled, onConfirm, onClose }: DialogProps) {
  const dialog = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  useEffect(() => dialog.current?.showModal(), []);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await onConfirm();
      onClose();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} aria-labelledby={titleId} onClose={onClose}>
      <form onSubmit={(event) => void submit(event)}>
        <header>
          <h2 id={titleId}>{title}</h2>
        </header>
        <div className="content">
          {children}
          {error !== null && <ErrorNotice error={error} />}
        </div>
        <footer>
          <Button onClick={() => dialog.current?.close()}>Cancel</Button>
          <Button type="submit" kind={danger ? "danger" : "primary"} disabled={busy || (disabled ?? false)}>
            {confirm}
          </Button>
        </footer>
      </form>
    </dialog>
  );
}
