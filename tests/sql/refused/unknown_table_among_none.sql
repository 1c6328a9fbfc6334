SELECT id FROM orders;
