import { useRef, useState } from "react";
import { FUNCTIONS, KINDS, type Program } from "../../lib/program";
import { Dialog } from "../../ui/dialog";
import { Menu } from "../../ui/menu";
import { Button, Field } from "../../ui/parts";

/** The program itself (null), one of its functions by number, or one of its files by name. */
export type Part = null | number | string;

interface FilesProps {
  program: Program;
  current: Part;
  onChoose: (part: Part) => void;
  onChange: (program: Program) => void;
}

/** The parts of a program, as files; functions and files are added and removed here. */
export function Files({ program, current, onChoose, onChange }: FilesProps) {
  const [naming, setNaming] = useState(false);
  const [name, setName] = useState("");
  const upload = useRef<HTMLInputElement>(null);
  const { kind, udfs, files } = program;
  const parts: { part: Part; label: string }[] = [
    { part: null, label: KINDS[kind].file },
    ...(kind === "sql"
      ? udfs.map((udf, index) => ({ part: index, label: `function ${index + 1}.${udf.language === "rust" ? "rs" : "py"}` }))
      : Object.keys(files).map((file) => ({ part: file, label: file }))),
  ];
  const addFunction = (language: "python" | "rust") => {
    onChange({ ...program, udfs: [...udfs, { language, definition: FUNCTIONS[language] }] });
    onChoose(udfs.length);
  };
  const remove = () => {
    if (typeof current === "number") onChange({ ...program, udfs: udfs.filter((_, index) => index !== current) });
    else onChange({ ...program, files: Object.fromEntries(Object.entries(files).filter(([file]) => file !== current)) });
    onChoose(null);
  };
  const take = async (chosen: FileList | null) => {
    const texts = await Promise.all([...(chosen ?? [])].map(async (file) => [file.name, await file.text()] as const));
    const isMain = (file: string) => kind === "dataflow" && /\.ya?ml$/.test(file);
    const main = texts.find(([file]) => isMain(file));
    const others = Object.fromEntries(texts.filter(([file]) => !isMain(file)));
    onChange({ ...program, ...(main && { query: main[1] }), files: { ...files, ...others } });
    onChoose(main ? null : (texts[0]?.[0] ?? null));
  };
  return (
    <header className="files">
      <div className="row grow wrap" role="group" aria-label="Files">
        {parts.map(({ part, label }) => (
          <button key={label} type="button" className="file" aria-pressed={part === current} onClick={() => onChoose(part)}>
            {label}
          </button>
        ))}
      </div>
      {current !== null && (
        <Button
          small
          kind="plain"
          icon="trash"
          label={typeof current === "number" ? "Remove this function" : "Remove this file"}
          onClick={remove}
        />
      )}
      {kind === "sql" ? (
        <Menu
          button={{ icon: "plus", small: true, kind: "plain", children: "Function" }}
          items={[
            { label: "In Python", onSelect: () => addFunction("python") },
            { label: "In Rust", onSelect: () => addFunction("rust") },
          ]}
        />
      ) : (
        <>
          <Menu
            button={{ icon: "plus", small: true, kind: "plain", children: "File" }}
            items={[
              {
                label: "New…",
                onSelect: () => {
                  setName("");
                  setNaming(true);
                },
              },
              { label: "Upload…", help: "A YAML file replaces the dataflow.", onSelect: () => upload.current?.click() },
            ]}
          />
          <input
            ref={upload}
            type="file"
            multiple
            hidden
            aria-label="Upload files"
            onChange={(event) => {
              void take(event.target.files);
              event.target.value = "";
            }}
          />
        </>
      )}
      {naming && (
        <Dialog
          title="New file"
          confirm="Add"
          disabled={name.trim() === "" || name.trim() in files}
          onConfirm={() => {
            onChange({ ...program, files: { ...files, [name.trim()]: "" } });
            onChoose(name.trim());
            return Promise.resolve();
          }}
          onClose={() => setNaming(false)}
        >
          <Field label="Name" help="As the program names it, such as operators/count.py" required>
            {(id, help) => (
              <input
                id={id}
                aria-describedby={help}
                className="input mono"
                value={name}
                onChange={(event) => setName(event.target.value)}
                required
              />
            )}
          </Field>
        </Dialog>
      )}
    </header>
  );
}

/** The text of a part, and the program with another one. */
export function textOfPart(program: Program, part: Part): string {
  if (part === null) return program.query;
  return typeof part === "number" ? (program.udfs[part]?.definition ?? "") : (program.files[part] ?? "");
}

export function withText(program: Program, part: Part, text: string): Program {
  if (part === null) return { ...program, query: text };
  if (typeof part === "string") return { ...program, files: { ...program.files, [part]: text } };
  return { ...program, udfs: program.udfs.map((udf, index) => (index === part ? { ...udf, definition: text } : udf)) };
}
