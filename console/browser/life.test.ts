import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { expectAccessible, openBrowser, picture, SERVER, write, type Browser } from "./browser";

const QUERY = `CREATE TABLE sensors WITH (
  connector = 'impulse',
  event_rate = '200'
);

CREATE VIEW readings AS
SELECT counter % 4 AS sensor, counter AS reading FROM sensors;

SELECT sensor, count(*) AS readings, max(reading) AS newest
FROM readings
GROUP BY sensor, tumble(INTERVAL '1 second');
`;

const FAILING = `CREATE TABLE numbers WITH (connector = 'impulse', event_rate = '10');

SELECT 100 / (CAST(counter AS BIGINT) - 3) AS inverse FROM numbers;
`;

let browser: Browser;

beforeAll(async () => {
  browser = await openBrowser();
});
beforeEach(() => {
  browser.complaints.length = 0;
});
afterAll(() => browser.close());

async function start(name: string, query: string): Promise<void> {
  const { page } = browser;
  await page.goto(`${SERVER}/pipelines/new`);
  await write(page, "Query", query);
  await page.getByText("No problems", { exact: true }).first().waitFor();
  await page.getByRole("button", { name: "Start…" }).click();
  const dialog = page.getByRole("dialog", { name: "Start the pipeline" });
  await dialog.getByLabel("Name").fill(name);
  await dialog.getByLabel("Seconds between checkpoints").fill("1");
  await expectAccessible(page);
  await dialog.getByRole("button", { name: "Start" }).click();
  await page.getByRole("heading", { name, level: 1 }).waitFor();
}

test("a pipeline is written, started, looked at, stopped, started again and deleted by clicks", async () => {
  const { page, complaints } = browser;
  const badge = page.locator(".page-head .badge").first();
  await start("sensor_readings", QUERY);
  await badge.filter({ hasText: "Running" }).waitFor();

  await page.getByRole("tab", { name: "Outputs" }).click();
  await page.getByRole("columnheader", { name: "newest" }).waitFor();
  await page.locator(".table.data tbody tr").nth(8).waitFor();
  await expectAccessible(page);
  await picture(page, "outputs");

  await page.getByRole("tab", { name: "Tap" }).click();
  await page.getByRole("region", { name: /^Rows from .*, the newest first$/ }).waitFor();
  await page.getByLabel("where").fill("counter % 10 = 0");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByText(/^epoch \d+: .* rows, .* match/).waitFor();
  await page.getByRole("region", { name: /^Rows from .*, the newest first$/ }).waitFor();
  await expectAccessible(page);
  await picture(page, "tap");
  await page.getByLabel("where").fill("contour > 0");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByRole("alert").getByText(/no column `contour`/).waitFor();
  await page.getByLabel("where").fill("count(*) > 0");
  await page.getByRole("button", { name: "Filter" }).click();
  await page.getByRole("alert").getByText(/not a condition on one row/).waitFor();
  await expectAccessible(page);

  await page.getByRole("tab", { name: "Checkpoints" }).click();
  await page.getByRole("heading", { name: /^Epoch \d+$/ }).waitFor();
  await expectAccessible(page);
  await picture(page, "checkpoints");
  await page.getByRole("button", { name: "Resume from here…" }).click();
  await page.getByRole("dialog").getByText(/Later checkpoints are removed/).waitFor();
  await expectAccessible(page);
  await page.getByRole("dialog").getByRole("button", { name: "Resume" }).click();
  await page.getByText(/· run 2/).waitFor();
  await badge.filter({ hasText: "Running" }).waitFor();

  await page.getByRole("tab", { name: "State" }).click();
  await page.getByRole("button", { name: "Show rows" }).first().click();
  await page.getByRole("region", { name: "Rows of the state" }).or(page.getByText("0 rows")).first().waitFor();
  await page.getByRole("button", { name: "Compare…" }).first().click();
  await page.getByRole("region", { name: "Comparison of two epochs" }).getByText(/added, .* removed, .* changed/).waitFor();
  await expectAccessible(page);
  await picture(page, "state");

  await page.getByRole("tab", { name: "Query" }).click();
  await page.getByRole("textbox", { name: "Query" }).waitFor();
  await expectAccessible(page);
  await page.getByRole("link", { name: "Change…" }).click();
  await page.getByRole("heading", { name: "Change sensor_readings" }).waitFor();
  await write(page, "Query", `${QUERY}\nSELECT counter FROM sensors WHERE counter % 1000 = 0;\n`);
  await page.getByText("No problems", { exact: true }).first().waitFor();
  await page.getByRole("button", { name: "Apply…" }).click();
  await page.getByRole("dialog").getByRole("region", { name: "Kept" }).getByText(/the position of/).waitFor();
  await expectAccessible(page);
  await picture(page, "change");
  await page.getByRole("dialog").getByRole("button", { name: "Apply" }).click();
  await page.getByText(/^Version 1 ·/).click();
  await page.getByRole("link", { name: "Go back to this version…" }).waitFor();
  await expectAccessible(page);
  await page.getByText(/· run 3/).waitFor();
  await badge.filter({ hasText: "Running" }).waitFor();

  await page.getByRole("tab", { name: "Log" }).click();
  await page.getByLabel("Log of the pipeline's process").waitFor();
  await expectAccessible(page);

  await page.getByRole("tab", { name: "Operators" }).click();
  await page.locator(".operator .rate").first().waitFor();
  await page.getByRole("figure", { name: /Rows per second/ }).waitFor();
  await expectAccessible(page);
  await picture(page, "pipeline");

  await page.getByLabel("Charts of the last").selectOption("3600");
  await page.getByText("Busy", { exact: true }).waitFor();

  await page.goto(`${SERVER}/cluster`);
  await page.getByRole("row", { name: /sensor_readings/ }).getByText(/iB$/).waitFor();
  await page.getByRole("region", { name: "Changes and refused requests" }).last().getByText(/POST/).first().waitFor();
  await expectAccessible(page);
  await picture(page, "cluster");
  await page.getByRole("link", { name: "sensor_readings" }).click();

  const second = await browser.context.newPage();
  await second.goto(`${SERVER}/pipelines`);
  await second.getByRole("row", { name: /sensor_readings/ }).getByText("Running").waitFor();
  await page.locator("a.back").click();
  const row = page.getByRole("row", { name: /sensor_readings/ });
  await row.getByText("Running").waitFor();
  await page.locator(".spark").first().waitFor();
  await expectAccessible(page);
  await picture(page, "pipelines");
  await row.getByRole("checkbox", { name: "Choose sensor_readings" }).check();
  await page.getByRole("button", { name: "Stop 1" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
  await row.getByText("Stopped").waitFor();
  await second.getByRole("row", { name: /sensor_readings/ }).getByText("Stopped").waitFor();
  await second.close();

  await row.getByRole("button", { name: "Start sensor_readings" }).click();
  await row.getByText("Running").waitFor();
  await row.getByRole("link", { name: "sensor_readings" }).click();
  await badge.filter({ hasText: "Running" }).waitFor();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await badge.filter({ hasText: "Stopped" }).waitFor();
  await page.getByRole("button", { name: "More actions" }).click();
  await page.getByRole("menuitem", { name: "Delete…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await page.getByRole("heading", { name: "Pipelines", exact: true }).waitFor();
  await row.waitFor({ state: "detached" });
  expect(complaints).toEqual([]);
});

test("a pipeline that fails says why, on its page and in the list", async () => {
  const { page, complaints } = browser;
  await start("inverse_numbers", FAILING);
  await page.getByText(/The pipeline failed/).waitFor();
  await page.getByRole("alert").getByText(/divide by zero|division by zero/i).waitFor();
  await page.getByRole("tab", { name: /Errors/ }).click();
  await page.getByRole("list", { name: /Errors/ }).getByText(/divi/i).first().waitFor();
  await expectAccessible(page);
  await picture(page, "errors");
  await page.goto(`${SERVER}/pipelines`);
  const row = page.getByRole("row", { name: /inverse_numbers/ });
  await row.getByText("Failed").waitFor();
  await row.getByText(/divi/i).waitFor();
  await page.getByRole("searchbox").fill("no such pipeline");
  await page.getByText("No pipeline matches").waitFor();
  expect(complaints).toEqual([]);
});
