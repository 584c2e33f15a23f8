// Merges two sorted arrays: every thread finds by bisection where its stretch of the output begins, then merges eight elements.
__device__ int split(const int *a, int na, const int *b, int nb, int diagonal) {
    int lo = diagonal > nb ? diagonal - nb : 0, hi = diagonal < na ? diagonal : na;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (a[mid] <= b[diagonal - 1 - mid]) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}
extern "C" __global__ void merge_path(const int *a, int na, const int *b, int nb, int *out) {
    int first = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (first >= na + nb) return;
    int i = split(a, na, b, nb, first), j = first - i;
    for (int k = first; k < first + 8 && k < na + nb; k++) out[k] = j >= nb || (i < na && a[i] <= b[j]) ? a[i++] : b[j++];
}
