-- Only what is read has late rows and bad records: the option would never do anything.
CREATE TABLE readings (x BIGINT) WITH (
    connector = 'single_file', path = '../inputs/readings.json', format = 'json', type = 'source'
);
CREATE TABLE copies (x BIGINT) WITH (
    connector = 'single_file',
    path = 'copies.json',
    format = 'json',
    late_table = 'others'
);
INSERT INTO copies SELECT x FROM readings;
