"""Text that somebody may put where it is shown."""

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; alert(1); '",
    "{{ 7 * 7 }} {% raw %}",
    "</style><script>x</script>",
    "<!-- --><svg onload=alert(1)>",
    '=HYPERLINK("http://evil","x")',
    "@SUM(1)",
    "javascript:alert(1)",
]
