// Code points of UTF-8 text, a thread a byte: continuation bytes give -1, broken sequences 0xfffd.
extern "C" __global__ void utf8_decode(const unsigned char *s, int *points, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned c = s[i];
    int point = 0xfffd, more = 0;
    if (c < 0x80) point = c;
    else if ((c & 0xc0) == 0x80) point = -1;
    else if ((c & 0xe0) == 0xc0) point = c & 0x1f, more = 1;
    else if ((c & 0xf0) == 0xe0) point = c & 0x0f, more = 2;
    else if ((c & 0xf8) == 0xf0) point = c & 0x07, more = 3;
    int length = more;
    for (int k = 1; k <= more; k++) {
        if (i + k >= n || (s[i + k] & 0xc0) != 0x80) {
            point = 0xfffd;
            length = 0;
            break;
        }
        point = point << 6 | (s[i + k] & 0x3f);
    }
    if (length == 1 && point < 0x80 || length == 2 && (point < 0x800 || point >= 0xd800 && point < 0xe000) ||
        length == 3 && (point < 0x10000 || point > 0x10ffff))
        point = 0xfffd;
    points[i] = point;
}
