import type { JobLogMessage } from "../../api/types";
import { formatAge, formatTime } from "../../lib/format";
import { placeIn } from "../../lib/problems";
import { Empty, ErrorNotice, Loading, Tag } from "../../ui/parts";

const TONES = { error: "bad", warn: "busy", info: "done" } as const;

interface ErrorsTabProps {
  messages: JobLogMessage[] | undefined;
  error: Error | null;
  query: string;
}

export function ErrorsTab({ messages, error, query }: ErrorsTabProps) {
  if (error) return <ErrorNotice error={error} />;
  if (!messages) return <Loading />;
  if (messages.length === 0) return <Empty title="No errors">Failures, retries and warnings are listed here.</Empty>;
  const lines = query.split("\n");
  return (
    <ol className="messages" aria-label="Errors, the newest first">
      {messages.map((message) => {
        const place = placeIn(`${message.message}\n${message.details}`);
        const line = place ? lines[place.line - 1] : undefined;
        return (
          <li key={message.id} className="card">
            <header>
              <span className={`badge ${TONES[message.level]}`}>{message.level}</span>
              {message.error_domain && <Tag>{message.error_domain}</Tag>}
              {message.operator_id && <Tag>{message.operator_id}</Tag>}
              {message.task_index !== null && <span className="muted small">subtask {message.task_index}</span>}
              <span className="grow" />
              <time className="muted small" title={formatTime(message.created_at)}>
                {formatAge(message.created_at)}
              </time>
            </header>
            <div className="body stack tight">
              <pre className="message">{message.message}</pre>
              {place && line !== undefined && (
                <pre className="code">
                  <span className="muted">{place.line} │ </span>
                  {line}
                </pre>
              )}
              {message.details && message.details !== message.message && (
                <details>
                  <summary>Details</summary>
                  <pre className="code">{message.details}</pre>
                </details>
              )}
            </div>
          </li>
        );
      })}
    </ol>
  );
}
