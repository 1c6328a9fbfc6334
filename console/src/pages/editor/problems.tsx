import type { Problem } from "../../ui/code";
import { Icon } from "../../ui/icons";
import { Empty, ErrorNotice } from "../../ui/parts";

interface ProblemsProps {
  problems: readonly Problem[];
  error: Error | null;
  empty: boolean;
}

export function Problems({ problems, error, empty }: ProblemsProps) {
  if (error) return <ErrorNotice error={error} />;
  if (problems.length === 0) {
    return <Empty title={empty ? "Write a query" : "No problems"}>{empty ? null : "The query can be started."}</Empty>;
  }
  return (
    <ul className="problems" aria-label="Problems of the query">
      {problems.map((problem, index) => (
        <li key={index} className="row problem">
          <span className="bad">
            <Icon name="warning" size={16} />
          </span>
          <pre className="grow">{problem.message}</pre>
          {problem.from && (
            <span className="muted small num">
              {problem.from.line}:{problem.from.column}
            </span>
          )}
        </li>
      ))}
    </ul>
  );
}
