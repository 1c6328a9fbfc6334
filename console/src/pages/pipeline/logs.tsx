import { useEffect, useMemo, useRef, useState } from "react";
import { useLogs } from "../../api/hooks";
import type { Job } from "../../api/types";
import { plural } from "../../lib/format";
import { isEnded } from "../../lib/states";
import { Empty, ErrorNotice, Loading, Search } from "../../ui/parts";

const SHOWN = 2000;

/** The end of what the process of a pipeline has written. */
export function LogsTab({ pipeline, job }: { pipeline: string; job: Job | undefined }) {
  const { data, error } = useLogs(pipeline, job?.id, job !== undefined && !isEnded(job.state));
  const [text, setText] = useState("");
  const box = useRef<HTMLPreElement>(null);
  const follows = useRef(true);
  const lines = useMemo(() => {
    const wanted = text.toLowerCase();
    return (data ?? "").split("\n").filter((line) => line !== "" && line.toLowerCase().includes(wanted));
  }, [data, text]);
  useEffect(() => {
    if (follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  if (error) return <ErrorNotice error={error} />;
  if (data === undefined) return <Loading />;
  return (
    <section className="card fill" aria-label="Log of the pipeline's process">
      <header>
        <Search label="Lines with" value={text} onChange={setText} />
        <span className="grow" />
        <span className="muted small" role="status">
          {plural(lines.length, "line")}
          {lines.length > SHOWN ? `, the last ${SHOWN} are shown` : ""}
        </span>
      </header>
      {lines.length > 0 ? (
        <pre
          className="log"
          ref={box}
          aria-label="Lines of the log"
          role="region"
          // eslint-disable-next-line jsx-a11y/no-noninteractive-tabindex
          tabIndex={0}
          onScroll={(event) => {
            const { scrollTop, scrollHeight, clientHeight } = event.currentTarget;
            follows.current = scrollHeight - scrollTop - clientHeight < 40;
          }}
        >
          {lines.slice(-SHOWN).join("\n")}
        </pre>
      ) : (
        <Empty title={text ? "No line matches" : "Nothing was written yet"} />
      )}
    </section>
  );
}
