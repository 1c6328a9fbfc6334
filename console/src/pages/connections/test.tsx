import type { TestMessage } from "../../api/types";
import { Icon } from "../../ui/icons";

/** What the server found out, step by step. */
export function TestResult({ results, testing }: { results: readonly TestMessage[]; testing: boolean }) {
  const last = results.at(-1);
  if (!last && !testing) return null;
  const tone = last?.error ? "bad" : last?.done ? "good" : "";
  return (
    <div className={`notice ${tone}`} role="status">
      {testing ? <span className="spinner" aria-hidden="true" /> : <Icon name={last?.error ? "warning" : "check"} />}
      <div className="grow">
        {results.length === 0 && "Testing…"}
        {results.map((result, index) => (
          <pre key={index} className="message">
            {result.message}
          </pre>
        ))}
      </div>
    </div>
  );
}
