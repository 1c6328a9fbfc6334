CREATE TABLE people (
  "Person" STRUCT<"firstName" TEXT, "Home" STRUCT<"Street Name" TEXT, zip INT>>,
  "user" STRUCT<id BIGINT, name TEXT>
) WITH (
  connector = 'single_file',
  path = '../inputs/lang_people.json',
  format = 'json',
  type = 'source'
);

SELECT
  "Person"."firstName" AS "firstName",
  p."Person"."Home"."Street Name" AS street,
  "Person"."Home".zip,
  "user".id,
  p."user".name AS name
FROM people AS p;
