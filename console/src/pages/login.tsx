import { useState, type SubmitEvent } from "react";
import { signIn } from "../api/session";
import { Logo } from "../ui/icons";
import { Button, Field, messageOf } from "../ui/parts";

export function Login({ onDone }: { onDone: () => void }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      await signIn(token.trim());
      onDone();
    } catch (error) {
      setProblem(messageOf(error));
      setBusy(false);
    }
  };
  return (
    <main className="login">
      <form className="card" onSubmit={(event) => void submit(event)}>
        <div className="body stack">
          <div className="row">
            <Logo />
            <h1>Headrace</h1>
          </div>
          <p className="muted">Sign in with the access token of this server.</p>
          <Field label="Access token">
            {(id, help) => (
              <input
                id={id}
                aria-describedby={help}
                className="input"
                type="password"
                autoComplete="current-password"
                value={token}
                onChange={(event) => setToken(event.target.value)}
              />
            )}
          </Field>
          {problem && (
            <div className="notice bad" role="alert">
              {problem}
            </div>
          )}
          <Button type="submit" kind="primary" disabled={busy || token.trim() === ""}>
            Sign in
          </Button>
        </div>
      </form>
    </main>
  );
}
