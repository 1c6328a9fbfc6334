-- Unquoted names are lower case; quoted names are as they are.
CREATE TABLE Mixed (
  "userId" TEXT,
  userid TEXT,
  Plain INT,
  "with space" INT,
  "dot.ted" INT,
  "quo""te" INT
) WITH (
  'connector' = 'single_file',
  'path' = '../inputs/lang_mixed.json',
  'format' = 'json',
  'type' = 'source'
);

CREATE VIEW "Ordinary" AS SELECT "userId" AS "UserName", USERID, pLAIN, "with space" + 1 AS "one more", "dot.ted", "quo""te" FROM MIXED;

SELECT "UserName", userid, PLAIN AS "PLAIN", "one more", o."dot.ted", "quo""te" FROM "Ordinary" AS o;
