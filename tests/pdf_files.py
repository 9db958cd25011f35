"""PDF files without a library that writes them."""


def make_pdf(*pages: str, bookmarks: tuple[tuple[str, int], ...] = ()) -> bytes:
    """Return a PDF file with a line of text per line of each page, and bookmarks (title, page index)."""
    font, first = 3, 4
    marks = first + 2 * len(pages)
    objects = [f"<</Type/Catalog/Pages 2 0 R/Outlines {marks} 0 R>>".encode()]
    kids = " ".join(f"{first + 2 * number} 0 R" for number in range(len(pages)))
    objects += [f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>".encode()]
    objects += [b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    for number, page in enumerate(pages):
        lines = "".join(f"({line}) Tj 0 -14 Td " for line in page.splitlines())
        content = f"BT /F 12 Tf 50 700 Td {lines}ET".encode()
        box = f"/MediaBox[0 0 600 800]/Resources<</Font<</F {font} 0 R>>>>/Contents {first + 2 * number + 1} 0 R"
        objects += [f"<</Type/Page/Parent 2 0 R{box}>>".encode()]
        objects += [b"<</Length %d>>stream\n%s\nendstream" % (len(content), content)]
    if bookmarks:
        last = marks + len(bookmarks)
        objects += [f"<</Type/Outlines/First {marks + 1} 0 R/Last {last} 0 R/Count {len(bookmarks)}>>".encode()]
    for number, (title, page_index) in enumerate(bookmarks, start=marks + 1):
        links = f"/Prev {number - 1} 0 R" * (number > marks + 1) + f"/Next {number + 1} 0 R" * (number < last)
        place = f"/Dest[{first + 2 * page_index} 0 R/Fit]"
        objects += [f"<</Title({title})/Parent {marks} 0 R{links}{place}>>".encode()]
    data, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(data))
        data += b"%d 0 obj%s endobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    return data + b"xref\n0 %d\n0000000000 65535 f \n%strailer<</Size %d/Root 1 0 R>>startxref\n%d\n%%%%EOF" % (
        *(size, table, size, len(data)),
    )
