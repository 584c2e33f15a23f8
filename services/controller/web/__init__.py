"""The web pages of the controller: server-rendered templates, one stylesheet, htmx for parts of pages, one stream of changes for all pages.

Modules: ``templating`` renders whole pages with their security headers, and serves their assets; ``listing`` maps search, filters, sort and
paging of a table to its address; ``live`` and ``stream`` push changes to open pages; ``forms`` reads posted forms and carries one message
over a redirect; ``charts`` and ``history`` draw the last hour of every device; the others are the pages. Writes go through ``actions``, as
REST's do.
"""
