// A certified OpenID Connect provider (npm: oidc-provider) on loopback, for tests.
//   node oidc_provider.mjs MODULE '{"port": 1, "clients": [...], "accounts": {"subject": {"email": ...}}}'
// It has new signing keys at every start, logs in every account with any password, and writes its issuer to standard output.
import { generateKeyPairSync, randomUUID } from 'node:crypto'

const [module, settings] = process.argv.slice(2)
const { default: Provider } = await import(module)
const { port, clients, accounts } = JSON.parse(settings)
const issuer = `http://127.0.0.1:${port}`
const key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' })
const provider = new Provider(issuer, {
  clients,
  claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['preferred_username'] },
  conformIdTokenClaims: false,
  cookies: { keys: [randomUUID()] },
  features: { deviceFlow: { enabled: true } },
  findAccount: (_, subject) => accounts[subject] && { accountId: subject, claims: () => ({ sub: subject, ...accounts[subject] }) },
  jwks: { keys: [{ ...key, kid: randomUUID(), use: 'sig', alg: 'RS256' }] },
  pkce: { required: () => true }
})
provider.listen(port, '127.0.0.1', () => console.log(issuer))
