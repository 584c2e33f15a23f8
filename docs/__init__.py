"""The documentation: pages in Markdown, and the code that makes the site of them (``make docs``).

May live here: pages, and ``generate``. May not: anything that the product imports.
"""
