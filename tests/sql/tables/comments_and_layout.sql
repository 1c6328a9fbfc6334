/* A comment
   of several lines; with a semicolon and a 'quote' */
CREATE TABLE orders ( -- the table
  id BIGINT, -- comes first; really
  /* status TEXT, */
  amount DOUBLE, -- a comma may follow the last column
) WITH (connector='single_file',path='../inputs/lang_orders.json',format='json',type='source',);;

-- SELECT nothing FROM nowhere;
select id -- ; not the end
  , amount /* nor; here */ from orders where amount > /* more than */ 60 -- sixty
