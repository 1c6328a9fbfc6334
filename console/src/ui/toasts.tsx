import { createContext, useCallback, useContext, useState, type ReactNode } from "react";
import { Button, messageOf } from "./parts";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

interface Tell {
  tell: (text: string) => void;
  /** Keeps standing until it is closed. */
  fail: (error: unknown) => void;
}

const Context = createContext<Tell>({ tell: () => undefined, fail: () => undefined });

let next = 0;

export function ToastProvider({ children }: { children: ReactNode }) {
  const [toasts, setToasts] = useState<Toast[]>([]);
  const close = useCallback((id: number) => setToasts((all) => all.filter((toast) => toast.id !== id)), []);
  const add = useCallback((text: string, bad: boolean) => {
    next += 1;
    const id = next;
    setToasts((all) => [...all.slice(-3), { id, text, bad }]);
    return id;
  }, []);
  const [tell] = useState<Tell>(() => ({
    tell: (text) => {
      const id = add(text, false);
      setTimeout(() => close(id), 5000);
    },
    fail: (error) => void add(messageOf(error), true),
  }));
  return (
    <Context value={tell}>
      {children}
      <div className="toasts" role="status" aria-live="polite">
        {toasts.map((toast) => (
          <div key={toast.id} className={toast.bad ? "toast bad" : "toast"}>
            <span className="grow">{toast.text}</span>
            <Button small kind="plain" icon="cross" label="Close this message" onClick={() => close(toast.id)} />
          </div>
        ))}
      </div>
    </Context>
  );
}

export function useToasts(): Tell {
  return useContext(Context);
}
