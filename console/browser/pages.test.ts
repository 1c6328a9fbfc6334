import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { expectAccessible, openBrowser, picture, SERVER, write, type Browser } from "./browser";

let browser: Browser;

beforeAll(async () => {
  browser = await openBrowser();
});
beforeEach(() => {
  browser.complaints.length = 0;
});
afterAll(() => browser.close());

test("axe finds nothing on the pages, in light and dark; the keyboard reaches the content", async () => {
  const { page, complaints } = browser;
  for (const scheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme: scheme });
    const everywhere = ["/pipelines", "/connections/new", "/functions"];
    const paths = scheme === "light" ? [...everywhere, "/connections", "/cluster", "/nowhere"] : everywhere;
    for (const path of paths) {
      await page.goto(SERVER + path);
      await page.getByRole("navigation", { name: "Pages" }).waitFor();
      await page.locator(".loading").waitFor({ state: "detached" });
      await expectAccessible(page);
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.goto(`${SERVER}/pipelines`);
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  expect(await page.evaluate(() => location.hash)).toBe("#content");
  await page.getByRole("button", { name: "Dark colours" }).click();
  expect(await page.evaluate(() => document.documentElement.dataset["theme"])).toBe("dark");
  await page.getByRole("button", { name: "Light colours" }).click();
  expect(complaints).toEqual([]);
});

test("the editor underlines mistakes, and completes tables, columns and options", async () => {
  const { page, complaints } = browser;
  await page.goto(`${SERVER}/pipelines/new`);
  await write(page, "Query", "CREATE TABLE clicks WITH (connector = 'impulse', event_rate = '5');\n\nSELECT contour FROM clicks;");
  await page.getByRole("list", { name: "Problems of the query" }).getByText(/contour/).waitFor();
  await page.locator(".cm-lintRange-error", { hasText: "contour" }).waitFor();
  expect(await page.getByRole("button", { name: "Start…" }).isDisabled()).toBe(true);
  await expectAccessible(page);
  await write(page, "Query", "CREATE TABLE clicks WITH (connector = 'impulse', event_rate = '5');\n\nSELECT counter FROM clicks;");
  await page.getByText("No problems", { exact: true }).first().waitFor();
  await page.getByText(/operators$/).waitFor();
  await expectAccessible(page);
  await picture(page, "editor");

  await write(page, "Query", "CREATE TABLE clicks WITH (connector = '");
  await page.keyboard.type("imp");
  await page.locator(".cm-tooltip-autocomplete").getByText("impulse").first().waitFor();
  await page.keyboard.press("Escape");
  await write(page, "Query", "CREATE TABLE clicks WITH (connector = 'impulse', ");
  await page.keyboard.type("ev");
  await page.locator(".cm-tooltip-autocomplete").getByText("event_rate").first().waitFor();
  await page.keyboard.press("Escape");
  expect(complaints).toEqual([]);
});

test("a dataflow and its files are edited as a query is, and a file is uploaded", async () => {
  const { page, complaints } = browser;
  await page.goto(`${SERVER}/pipelines/new`);
  await page.getByRole("heading", { name: "New pipeline" }).waitFor();
  const again = page.getByRole("button", { name: "Begin again" });
  if (await again.isVisible()) await again.click();
  await page.getByLabel("Kind").selectOption("dataflow");
  await page.getByRole("textbox", { name: "Dataflow" }).waitFor();
  await page.getByText("No problems", { exact: true }).first().waitFor();
  await page.getByRole("button", { name: "counter.py" }).click();
  await page.getByRole("textbox", { name: "counter.py" }).waitFor();
  await expectAccessible(page);
  await picture(page, "dataflow");
  await page.getByRole("button", { name: "Remove this file" }).click();
  await page.getByRole("list", { name: "Problems of the query" }).getByText(/counter.py/).waitFor();
  const buffer = Buffer.from("class Operator:\n    def on_event(self, dora_event, send_output):\n        pass\n");
  await page.getByLabel("Upload files").setInputFiles({ name: "counter.py", mimeType: "text/x-python", buffer });
  await page.getByText("No problems", { exact: true }).first().waitFor();
  await page.getByRole("button", { name: "Begin again" }).click();
  await page.getByRole("combobox", { name: "Kind" }).selectOption("sql");
  expect(complaints).toEqual([]);
});

test("a table is made from the form of its connector, used by name and deleted", async () => {
  const { page, complaints } = browser;
  await page.goto(`${SERVER}/connections/new`);
  await page.getByRole("button", { name: /^Impulse/ }).first().waitFor();
  await picture(page, "connectors");
  await page.getByRole("button", { name: /^Impulse/ }).first().click();
  await page.getByLabel(/^Name/).first().fill("pulses");
  const rate = page.getByLabel(/^Event rate/);
  if (!(await rate.isVisible())) await page.getByText(/more options$/).first().click();
  await rate.fill("10");
  await expectAccessible(page);
  await picture(page, "connection");
  await page.getByRole("button", { name: "Create" }).click();
  await page.getByRole("button", { name: "pulses", exact: true }).click();
  await page.getByRole("list", { name: "Columns of pulses" }).waitFor();
  await expectAccessible(page);

  await page.goto(`${SERVER}/pipelines/new`);
  await write(page, "Query", "SELECT counter FROM pulses;");
  await page.getByText("No problems", { exact: true }).first().waitFor();

  await page.goto(`${SERVER}/connections`);
  await page.getByRole("button", { name: "Delete pulses" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByRole("button", { name: "pulses", exact: true }).waitFor({ state: "detached" });
  expect(complaints).toEqual([]);
});

test("a connection that drops is told, and when it is back the pages go on by themselves", async () => {
  const { page, context, complaints } = browser;
  await page.goto(`${SERVER}/pipelines`);
  await page.getByRole("heading", { name: "Pipelines", exact: true }).waitFor();
  await context.setOffline(true);
  await page.getByText(/The server cannot be reached/).waitFor();
  await expectAccessible(page);
  await context.setOffline(false);
  await page.getByText(/The server cannot be reached/).waitFor({ state: "detached" });
  await page.getByRole("heading", { name: "Pipelines", exact: true }).waitFor();
  expect(complaints).toEqual([]);
});
