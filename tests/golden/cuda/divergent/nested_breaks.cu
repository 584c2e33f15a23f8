// Smallest pair of factors (a, b) with a * b == n and both above a bound, by loops that break and continue at several depths.
extern "C" __global__ void nested_breaks(const int *numbers, int2 *factors, int bound, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int2 found = make_int2(0, 0);
    for (int a = bound; a <= 40; a++) {
        if (numbers[i] % a) continue;
        for (int b = a; b <= 120; b += 3) {
            if (a * b > numbers[i]) break;
            if (b % 2 == 0 && a % 2 == 0) continue;
            if (a * b == numbers[i]) {
                found = make_int2(a, b);
                goto done;
            }
        }
    }
done:
    factors[i] = found;
}
