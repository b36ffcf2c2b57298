"""`kubectl gpushare ui`: a page that shows every GPU, its clients and what is wrong, live. It changes nothing.

`cluster` reads, `content` makes rows of what was read, `serving` answers browsers. `static` is the page itself, as
browsers take it: there is no build step, and it loads nothing from elsewhere.
"""
