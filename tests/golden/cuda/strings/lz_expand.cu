// Expands one stream of literals and (distance, length) copies a thread; copies may overlap themselves.
extern "C" __global__ void lz_expand(const unsigned char *packed, const int *begin, unsigned char *out, int *lengths, int most, int n) {
    int id = threadIdx.x;
    if (id >= n) return;
    const unsigned char *p = packed + begin[id], *end = packed + begin[id + 1];
    unsigned char *q = out + id * most;
    int length = 0;
    while (p < end) {
        int token = *p++;
        if (token < 128) {
            for (int k = 0; k <= token; k++) q[length++] = *p++;
        } else {
            int distance = *p++;
            for (int k = 0; k < token - 126; k++, length++) q[length] = q[length - distance];
        }
    }
    lengths[id] = length;
}
