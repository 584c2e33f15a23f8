// Edit distance of each pair of words: one row of the table in a local array of bytes.
extern "C" __global__ void levenshtein(const char *words, const int *begin, const int2 *pairs, int *distance, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const char *a = words + begin[pairs[i].x], *b = words + begin[pairs[i].y];
    int la = begin[pairs[i].x + 1] - begin[pairs[i].x], lb = begin[pairs[i].y + 1] - begin[pairs[i].y];
    unsigned char row[20];
    for (int j = 0; j <= lb; j++) row[j] = j;
    for (int k = 1; k <= la; k++) {
        unsigned char diagonal = row[0];
        row[0] = k;
        for (int j = 1; j <= lb; j++) {
            unsigned char up = row[j];
            int best = min(min(up, row[j - 1]) + 1, diagonal + (a[k - 1] != b[j - 1]));
            diagonal = up;
            row[j] = best;
        }
    }
    distance[i] = row[lb];
}
