import { describe, expect, test } from "vitest";
import { formatAge, formatBytes, formatCount, formatSeconds, plural } from "../src/lib/format";

describe("numbers are written as people read them", () => {
  test.each([
    [0, "0"],
    [7, "7"],
    [0.25, "0.3"],
    [999, "999"],
    [1000, "1k"],
    [1234, "1.2k"],
    [999_999, "1M"],
    [12_345_678, "12.3M"],
    [3.2e12, "3.2T"],
    [-1500, "-1.5k"],
  ])("%d is %s", (value, text) => expect(formatCount(value)).toBe(text));

  test.each([
    [0, "0 B"],
    [1023, "1023 B"],
    [1536, "1.5 KiB"],
    [10 * 1024, "10 KiB"],
    [5 * 1024 ** 3, "5.0 GiB"],
  ])("%d bytes are %s", (value, text) => expect(formatBytes(value)).toBe(text));

  test.each([
    [0, "0 ms"],
    [0.12, "120 ms"],
    [1.25, "1.3 s"],
    [59, "59 s"],
    [93, "1m 33s"],
    [3600, "1h"],
    [90_061, "1d 1h"],
    [-2, "-2.0 s"],
  ])("%d seconds are %s", (value, text) => expect(formatSeconds(value)).toBe(text));

  test("an instant is told by its age", () => {
    const now = 1_700_000_000_000;
    expect(formatAge((now - 1000) * 1000, now)).toBe("just now");
    expect(formatAge((now - 42_000) * 1000, now)).toBe("42 s ago");
    expect(formatAge((now - 5_400_000) * 1000, now)).toBe("1h ago");
    expect(formatAge((now + 9000) * 1000, now)).toBe("just now");
  });

  test("a noun follows its number", () => {
    expect(plural(1, "row")).toBe("1 row");
    expect(plural(1200, "row")).toBe("1,200 rows");
  });
});
