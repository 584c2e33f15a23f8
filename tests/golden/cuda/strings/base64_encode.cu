// Three bytes to four letters a thread, '=' at the end.
__constant__ char alphabet[65] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
extern "C" __global__ void base64_encode(const unsigned char *in, char *out, int n) {
    int g = blockIdx.x * blockDim.x + threadIdx.x, i = 3 * g;
    if (i >= n) return;
    unsigned v = in[i] << 16 | (i + 1 < n ? in[i + 1] << 8 : 0) | (i + 2 < n ? in[i + 2] : 0);
    char4 letters = make_char4(alphabet[v >> 18], alphabet[v >> 12 & 63], alphabet[v >> 6 & 63], alphabet[v & 63]);
    if (i + 1 >= n) letters.z = '=';
    if (i + 2 >= n) letters.w = '=';
    ((char4 *)out)[g] = letters;
}
