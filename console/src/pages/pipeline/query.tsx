import { Link } from "wouter";
import { useVersions } from "../../api/hooks";
import type { Pipeline } from "../../api/types";
import { formatTime } from "../../lib/format";
import { KINDS, languageOf } from "../../lib/program";
import { Code, type Language } from "../../ui/code";
import { Button } from "../../ui/parts";
import { useToasts } from "../../ui/toasts";
import { Icon } from "../../ui/icons";

/** The functions and files of a program. */
function Parts({ program, version }: { program: Pick<Pipeline, "udfs" | "files">; version: string }) {
  const parts: { label: string; language: Language; text: string }[] = [
    ...program.udfs.map((udf, index) => ({ label: `Function ${index + 1}${version}`, language: udf.language, text: udf.definition })),
    ...Object.entries(program.files).map(([file, text]) => ({ label: `${file}${version}`, language: languageOf(file), text })),
  ];
  return parts.map(({ label, language, text }) => (
    <section className="card" key={label} aria-label={label}>
      <header>
        <h2 className="grow">{label}</h2>
      </header>
      <Code grows label={label} language={language} value={text} />
    </section>
  ));
}

/** The programs that the pipeline had before. */
function Versions({ pipeline }: { pipeline: Pipeline }) {
  const { data } = useVersions(pipeline.id, pipeline.version);
  const earlier = (data ?? []).filter((one) => one.version !== pipeline.version);
  if (earlier.length === 0) return null;
  return (
    <section className="card" aria-label="Earlier versions">
      <header>
        <h2 className="grow">Earlier versions</h2>
      </header>
      {earlier.map((one) => (
        <details key={one.version} className="version">
          <summary>
            Version {one.version} · {formatTime(one.created_at)} · {one.created_by}
            {one.query === pipeline.query ? " · the same query" : ""}
          </summary>
          <div className="body">
            <Link className="button small" href={`/pipelines/new?change=${pipeline.id}&version=${one.version}`}>
              Go back to this version…
            </Link>
          </div>
          <Code grows label={`Query of version ${one.version}`} language={KINDS[pipeline.kind].language} value={one.query} />
          <Parts program={one} version={` of version ${one.version}`} />
        </details>
      ))}
    </section>
  );
}

export function QueryTab({ pipeline }: { pipeline: Pipeline }) {
  const { tell, fail } = useToasts();
  const copy = () =>
    navigator.clipboard.writeText(pipeline.query).then(
      () => tell("The query was copied."),
      (error: unknown) => fail(error),
    );
  return (
    <div className="stack">
      <section className="card" aria-label="Query">
        <header>
          <h2 className="grow">Query</h2>
          <Button small icon="copy" onClick={() => void copy()}>
            Copy
          </Button>
          <Link className="button small" href={`/pipelines/new?change=${pipeline.id}`}>
            <Icon name="file" size={15} />
            Change…
          </Link>
        </header>
        <Code grows label="Query" language={KINDS[pipeline.kind].language} value={pipeline.query} />
      </section>
      <Parts program={pipeline} version="" />
      <Versions pipeline={pipeline} />
    </div>
  );
}
