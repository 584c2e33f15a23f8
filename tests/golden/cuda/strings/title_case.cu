// Upper case after a byte that is no letter, lower case after one, in place on a copy; the rest stays.
__device__ bool letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }
extern "C" __global__ void title_case(const char *in, char *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    char c = in[i];
    if (letter(c)) c = i > 0 && letter(in[i - 1]) ? c | 32 : c & ~32;
    out[i] = c;
}
